"""Test that the headline names the faulty line, and not a correct line before or behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

REFERENCE = """
import torch
from torch import nn
from torch.nn import functional as F


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 1.5))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(4, 20)
        self.scale, self.norm = Scale(), nn.LayerNorm(4)
        nn.init.normal_(self.norm.weight, 2.0, 0.5)
        for parameter in self.norm.parameters():
            parameter.requires_grad_(False)

    def forward(self, ids):
        n = ids.shape[1]
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        angles = torch.outer(torch.arange(n, dtype=q.dtype), 0.1 ** torch.arange(0, 2, dtype=q.dtype))
        cos, sin = angles.cos(), angles.sin()

        def turn(x):
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        q, k = self.scale(turn(q)), self.norm(turn(k))
        scores = q @ k.mT * 4**-0.5
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, HIDDEN)
        return self.out(scores.softmax(-1) @ v)


def build(config):
    return Net()


def batch(config, rng):
    labels = rng.integers(1, 20, (3, 7))
    labels[0, 4:] = 0
    return {"ids": rng.integers(0, 20, (3, 7)), "labels": labels}


def loss(model, batch):
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=0)
"""
PORT = """
import paddle
from paddle import nn
from paddle.nn import functional as F


class Scale(nn.Layer):
    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([4], default_initializer=nn.initializer.Constant(1.5))

    def forward(self, x):
        return self.weight * (x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(4, 20)
        self.scale = Scale()
        self.norm = nn.LayerNorm(4)
        for parameter in self.norm.parameters():
            parameter.stop_gradient = True

    def frozen(self, x):
        return F.layer_norm(x, [4]) * self.norm.weight + self.norm.bias

    def forward(self, ids):
        n = ids.shape[1]
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        angles = paddle.outer(paddle.arange(n).astype(q.dtype), 0.1 ** paddle.arange(0, 2).astype(q.dtype))
        cos, sin = angles.cos(), angles.sin()

        def turn(x):
            a, b = x.chunk(2, -1)
            return paddle.concat([a * cos - b * sin, b * cos + a * sin], -1)

        q = self.scale(turn(q))
        k = self.frozen(turn(k))
        scores = q @ k.transpose([0, 2, 1])
        scores = scores * 4**-0.5
        later = paddle.ones([n, n]).triu(1).astype("bool")
        scores = scores.masked_fill(later, HIDDEN)
        return self.out(paddle.matmul(F.softmax(scores, -1), v))


def build(config):
    return Net()


def loss(model, batch):
    logits, labels = model(batch["ids"]).flatten(0, 1), batch["labels"].flatten()
    scores = F.log_softmax(logits, -1)
    chosen = paddle.take_along_axis(scores, labels.unsqueeze(-1), -1).squeeze(-1)
    counted = (labels != 0).astype(scores.dtype)
    total = -(chosen * counted).sum()
    return total / counted.sum()
"""
#: By name, original code of the port, the faulty code, and the headline with LINE for its location.
FAULTS = {
    "scale of the scores": ("4**-0.5", "4**-0.51", "mul (LINE), on the way to output of out"),
    "rotation": ("a * cos - b * sin", "a * cos + b * sin", "add (LINE), on the way to output of scale"),
    "mask": ("triu(1)", "triu(2)", "triu (LINE), on the way to output of out"),
    "input of a layer": ("self.scale(turn(q))", "self.scale(q)", "the input (LINE), on the way to output of scale"),
    "input of Paddle's layer": (
        "self.frozen(turn(k))", "self.norm(k)", "the input (LINE), on the way to output of norm",
    ),
    "frozen gain": ("self.frozen(turn(k))", "self.norm(turn(k))", "the backward of norm (LINE)"),
    "divisor of the loss": ("/ counted.sum()", "/ len(labels)", "loss (loss, LINE)"),
    "logits of the loss": (
        "F.log_softmax(logits, -1)", "F.log_softmax(logits / 2, -1)", "truediv (LINE), on the way to loss",
    ),
}  # fmt: skip
FAST = ("scale of the scores", "input of a layer", "divisor of the loss")
#: Code of the faulty line if it is not the edited code.
LINES = {"frozen gain": "self.norm = nn.LayerNorm(4)", "divisor of the loss": "def loss(model, batch):"}


def run_pair_gate(command_line, folder: Path, port: str, mask_value: str = "-1e30") -> tuple[int, str]:
    (folder / "port.py").write_text(port.replace("HIDDEN", mask_value))
    (folder / "reference.py").write_text(REFERENCE.replace("HIDDEN", "float('-inf')"))
    sides = ("--port", folder / "port.py", "--reference-model", folder / "reference.py")
    status, out, err = command_line("parity", *sides, "--output", folder)
    return status, out + err


def test_the_correct_port_passes(command_line, tmp_path):
    status, out = run_pair_gate(command_line, tmp_path, PORT)
    assert status == 0 and out.startswith("PARITY "), out


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_the_headline_names_the_faulty_line(name, command_line, tmp_path):
    correct, faulty, headline = FAULTS[name]
    assert PORT.count(correct) == 1
    port = PORT.replace(correct, faulty)
    [line] = [number for number, text in enumerate(port.splitlines(), 1) if LINES.get(name, faulty) in text]
    status, out = run_pair_gate(command_line, tmp_path, port)
    assert status == 1 and out.splitlines()[0] == f"DRIFT {headline.replace('LINE', f'{tmp_path}/port.py:{line}')}", out
    assert (", by itself" in out.splitlines()[1]) != headline.startswith("the input")


@pytest.mark.slow
@pytest.mark.parametrize("mask_value", ["-100.0", "-1000.0", "-1e4", "float('-inf')"])
def test_the_value_of_masked_scores_does_not_matter(mask_value, command_line, tmp_path):
    correct, faulty, _ = FAULTS["scale of the scores"]
    status, out = run_pair_gate(command_line, tmp_path, PORT.replace(correct, faulty), mask_value)
    assert status == 1 and out.startswith("DRIFT mul ("), out


@pytest.mark.slow
def test_effects_of_an_unmatched_parameter_are_not_listed(command_line, tmp_path):
    port = PORT.replace("self.scale = Scale()", "self.scale, self.extra = Scale(), self.create_parameter([4])")
    port = port.replace("scores = q @", "scores = (q * self.extra) @")
    status, out = run_pair_gate(command_line, tmp_path, port)
    assert status == 1 and out.startswith("DRIFT gradient:extra\n"), out
    assert "are wrong, which may follow from gradient:extra\n" in out and "on the way to" not in out
    page = (tmp_path / "cpu" / "parity.html").read_text()
    assert "operations and gradients are wrong, which may follow from gradient:extra" in page


@pytest.mark.slow
def test_a_different_integer_is_not_rounding(command_line, tmp_path):
    constructor_code, table = "super().__init__()\n        self.embed", "paddle.to_tensor([1, 2, {}])"
    register = "super().__init__()\n        self.register_buffer('table', {})\n        self.embed"
    reference = REFERENCE.replace(constructor_code, register.format("torch.tensor([1, 2, 3])"))
    (tmp_path / "reference.py").write_text(reference.replace("HIDDEN", "float('-inf')"))
    (tmp_path / "port.py").write_text(
        PORT.replace(constructor_code, register.format(table.format(4))).replace("HIDDEN", "-1e30")
    )
    sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    status, out, _ = command_line("parity", *sides, "--output", tmp_path)
    assert status == 1 and "the port's own has other whole numbers, another shape or dtype, or is missing" in out, out
    assert " inf " not in out
