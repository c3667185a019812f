"""Test random functions of a pair, in every form of torch and Paddle: both sides get the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

REFERENCE = """\
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, target):
        x = self.first(x)
        n, m = x.shape
        mask = torch.empty(n, m, dtype=torch.bool)
        drawn = [
{lines}
        ]
        return F.mse_loss(self.last(x + sum((number + 1) * y for number, y in enumerate(drawn))), target)


def build(config):
    return Net()


def batch(config, rng):
    return {{"x": rng.normal(size=(4, 6)), "target": rng.normal(size=(4, 3))}}
"""
PORT = """\
import paddle
from paddle import nn
from paddle.nn import functional as F


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, target):
        x = self.first(x)
        n, m = x.shape
        mask = paddle.empty([n, m], dtype="bool")
        drawn = [
{lines}
        ]
        return F.mse_loss(self.last(x + sum((number + 1) * y for number, y in enumerate(drawn))), target)


def build(config):
    return Net()
"""
#: By name, the same draw in torch and in Paddle.
FORMS = {
    "numbers": ("torch.randn(n, m)", "paddle.randn(n, m)"),
    "tuple": ("torch.randn((n, m))", "paddle.randn([n, m])"),
    "size": ("torch.randn(size=(n, 1))", "paddle.randn(shape=[n, 1])"),
    "one number": ("torch.randn(m)", "paddle.standard_normal([m])"),
    "scalar": ("torch.randn(())", "paddle.randn([])"),
    "dtype": ("torch.rand(n, m, dtype=torch.float32)", "paddle.rand(n, m, dtype='float32')"),
    "changed in place": ("torch.randn(n, m).mul_(3)", "paddle.randn([n, m]) * 3"),
    "rand_like": ("torch.rand_like(input=x)", "paddle.rand_like(x)"),
    "randn_like": ("torch.randn_like(x, dtype=x.dtype)", "paddle.randn_like(x)"),
    "normal": ("torch.normal(2.0, 3.0, (n, m))", "paddle.normal(2.0, 3.0, [n, m])"),
    "normal of a tensor": ("torch.normal(x.detach(), 0.5)", "paddle.normal(x.detach(), 0.5)"),
    "bernoulli": ("torch.bernoulli(x.detach().sigmoid())", "paddle.bernoulli(F.sigmoid(x.detach()))"),
    "bernoulli of a rate": ("torch.zeros(n, m).bernoulli(0.3)", "paddle.bernoulli(paddle.zeros([n, m]), 0.3)"),
    "bernoulli_": ("torch.zeros(n, m).bernoulli_(p=0.4)", "paddle.zeros([n, m]).bernoulli_(0.4)"),
    "bernoulli_ of a mask": ("mask.bernoulli_(0.3).to(x)", "(paddle.rand([n, m]) < 0.3).astype(x.dtype)"),
    "uniform_": ("torch.zeros(n, m).uniform_(1, to=3)", "paddle.zeros([n, m]).uniform_(1, 3)"),
    "normal_": ("torch.zeros(n, m).normal_(std=2.0)", "paddle.zeros([n, m]).normal_(std=2.0)"),
    "exponential_": ("torch.zeros(n, m).exponential_(0.5)", "paddle.zeros([n, m]).exponential_(0.5)"),
    "randint": ("torch.randint(7, (n, m)).to(x)", "paddle.randint(0, 7, [n, m]).astype(x.dtype)"),
    "randint from": ("torch.randint(2, high=7, size=(n, m)).to(x)", "paddle.randint(2, 7, [n, m]).astype(x.dtype)"),
    "randint_like": ("torch.randint_like(x, 2, 9)", "paddle.randint_like(x, 2, 9)"),
    "randperm": ("x[torch.randperm(n)]", "x[paddle.randperm(n)]"),
    "multinomial": (
        "torch.multinomial(torch.ones(n, 9), m).to(x)",
        "paddle.multinomial(paddle.ones([n, 9]), m).astype(x.dtype)",
    ),
    "gumbel": (
        "F.gumbel_softmax(x, tau=0.7)",
        "F.softmax((x - paddle.log(paddle.empty([n, m]).exponential_())) / 0.7)",
    ),
    "gumbel_softmax": ("F.gumbel_softmax(x, tau=0.7)", "F.gumbel_softmax(x, temperature=0.7)"),
    "hard gumbel_softmax": ("F.gumbel_softmax(x, hard=True)", "F.gumbel_softmax(x, hard=True)"),
    "alpha dropout": ("F.alpha_dropout(x, 0.3, True)", "F.alpha_dropout(x, 0.3)"),
    "alpha dropout of channels": (
        "F.feature_alpha_dropout(x.view(1, n, m), 0.3, True).view(n, m)",
        "F.feature_alpha_dropout(x.reshape([1, n, m]), 0.3).reshape([n, m])",
    ),
    "normal distribution": (
        "torch.distributions.Normal(0.5, 2.0).sample((n, m)).to(x)",
        "paddle.distribution.Normal(0.5, 2.0).sample([n, m]).astype(x.dtype)",
    ),
    "reparametrized normal distribution": (
        "torch.distributions.Normal(x, 2.0).rsample()",
        "paddle.distribution.Normal(x, paddle.full_like(x, 2.0)).rsample()",
    ),
    "dropout": ("torch.dropout(x, 0.4, True)", "F.dropout(x, 0.4)"),
    "dropout of channels": ("F.dropout3d(x.view(n, m, 1, 1, 1), 0.3).view(n, m)", "F.dropout(x, 0.3)"),
}
#: By name, a faulty draw in Paddle: another number, bound, rate or count of draws.
WRONG = {
    "numbers": "paddle.randn(n, m) * 1.000001",
    "randint from": "paddle.randint(2, 8, [n, m]).astype(x.dtype)",
    "exponential_": "paddle.zeros([n, m]).exponential_(0.500001)",
    "uniform_": "paddle.zeros([n, m]).uniform_(1, 3.00001)",
    "bernoulli_": "paddle.zeros([n, m]).bernoulli_(0.6)",
    "randperm": "x[paddle.randperm(n).flip(0)]",
    "gumbel_softmax": "F.gumbel_softmax(x, temperature=0.700001)",
    "alpha dropout": "F.alpha_dropout(x, 0.3) * 1.000001",
}


def compare_pair(command_line, folder: Path, monkeypatch, forms: dict[str, tuple[str, str]]) -> tuple[int, str]:
    """Return the exit status and the output of a gate on the pair with these draws."""
    monkeypatch.chdir(folder)
    for name, code, column in (("reference.py", REFERENCE, 0), ("port.py", PORT, 1)):
        lines = "\n".join(f"            {form[column]}," for form in forms.values())
        Path(name).write_text(code.format(lines=lines))
    sides = ("--port", "port.py", "--reference-model", "reference.py")
    status, out, err = command_line("parity", *sides, "--output", "out")
    return status, out or err


@pytest.mark.parametrize("names", [("numbers", "randint from"), pytest.param(FORMS, marks=pytest.mark.slow, id="all")])
def test_both_sides_get_the_same_numbers(names, command_line, tmp_path, monkeypatch):
    status, out = compare_pair(command_line, tmp_path, monkeypatch, {name: FORMS[name] for name in names})
    assert status == 0 and f"and {len(names)} random draws of the two sides were matched" in out, out


@pytest.mark.parametrize("name", WRONG)
def test_a_port_with_different_draws_is_found(name, command_line, tmp_path, monkeypatch):
    status, out = compare_pair(command_line, tmp_path, monkeypatch, {name: (FORMS[name][0], WRONG[name])})
    assert status == 1 and out.startswith("DRIFT "), out


RECURRENT_REFERENCE = """\
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.{kind}(6, 4, num_layers=3, bidirectional=True, dropout=0.3, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x, labels):
        {run}
        return nn.functional.cross_entropy(self.out(x).mean(1), labels) + sum(state.mean() for state in states)


def build(config):
    return Net()


def batch(config, rng):
    return {{"x": rng.normal(size=(4, 5, 6)), "labels": rng.integers(0, 3, 4)}}
"""
RECURRENT_PORT = """\
from paddle import nn


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.rnn = nn.{kind}(6, 4, num_layers=3, direction="bidirect", dropout={rate})
        self.out = nn.Linear(8, 3)

    def forward(self, x, labels):
        {run}
        return nn.functional.cross_entropy(self.out(x).mean(1), labels) + sum(state.mean() for state in states)


def build(config):
    return Net()
"""
#: Statements that run a recurrent network and name its last states, by kind.
RUN_RECURRENT = {"LSTM": "x, states = self.rnn(x)", "GRU": "x, *states = self.rnn(x)"}
RUN_PACKED = """x, states = self.rnn(pack_padded_sequence(x, [5, 4, 3, 2], batch_first=True))
        x, _ = pad_packed_sequence(x, batch_first=True)"""


def compare_recurrent_pair(command_line, run: str, kind: str, rate: float) -> tuple[int, str]:
    """Return the exit status and output of a gate on recurrent networks with dropout between three layers."""
    Path("reference.py").write_text(RECURRENT_REFERENCE.format(kind=kind, run=run))
    Path("port.py").write_text(RECURRENT_PORT.format(kind=kind, run=RUN_RECURRENT[kind], rate=rate))
    status, out, err = command_line(
        "parity", "--port", "port.py", "--reference-model", "reference.py", "--output", "out"
    )
    return status, out or err


@pytest.mark.parametrize("kind", ["LSTM", pytest.param("GRU", marks=pytest.mark.slow)])
def test_dropout_between_recurrent_layers_has_the_masks_of_the_reference(kind, command_line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out = compare_recurrent_pair(command_line, RUN_RECURRENT[kind], kind, 0.3)
    assert status == 0 and "and 2 random draws of the two sides were matched" in out, out


def test_another_dropout_rate_between_recurrent_layers_is_found(command_line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out = compare_recurrent_pair(command_line, RUN_RECURRENT["LSTM"], "LSTM", 0.31)
    assert status == 1 and out.startswith("DRIFT rnn (LSTM, "), out
    assert "dropout of 0.31, the reference has 0.3" in out


def test_dropout_between_layers_of_a_packed_sequence_is_refused(command_line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out = compare_recurrent_pair(command_line, RUN_PACKED, "LSTM", 0.3)
    assert status == 2 and "reference.py:" in out, out
    assert "cannot be compared for a packed sequence; compare it with dropout 0" in out
    assert len(out.splitlines()) == 1
