"""Test pairs that once ended in an error: the correct port passes, and a faulty port is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.parity.job import user_code

REFERENCE = """\
import torch
from torch import nn
from torch.nn import functional as F


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(6, 10), nn.Linear(10, 6), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.down(self.dropout(self.up(x).tanh())))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.feed_forward, self.head = nn.Embedding(9, 6, sparse=True), FeedForward(), nn.Linear(6, 3)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.feed_forward(x).mean(1) + self.feed_forward(x[:, -2:]).mean(1))


def build(config):
    return Net()


def batch(config, rng):
    return {"ids": rng.integers(0, 9, (4, 5)), "labels": rng.integers(0, 3, 4)}
"""
PORT = """\
import paddle
from paddle import nn
from paddle.nn import functional as F


class FeedForward(nn.Layer):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(6, 10), nn.Linear(10, 6), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.down(self.dropout(self.up(x).tanh())))


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embed, self.feed_forward, self.head = nn.Embedding(9, 6, sparse=True), FeedForward(), nn.Linear(6, 3)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.feed_forward(x).mean(1) + self.feed_forward(x[:, -2:]).mean(1))


def build(config):
    return Net()
"""
#: By fault of the port, the original code, the faulty code, and the location in the headline.
FAULTS = {
    "inner dropout": ("self.down(self.dropout(self.up(x).tanh()))", "self.down(self.up(x).tanh())", "dropout"),
    "gradient of the table": ("x = self.embed(ids)", "x = self.embed(ids); x[:, 0] = x[:, 0].detach()", ""),
}


@pytest.fixture
def compare_pair(command_line, tmp_path, monkeypatch):
    """Return a function that runs a gate on the two files."""
    monkeypatch.chdir(tmp_path)

    def run(port: str, *options: str) -> tuple[int, str]:
        Path("reference.py").write_text(REFERENCE)
        Path("port.py").write_text(port)
        sides = ("--port", "port.py", "--reference-model", "reference.py")
        status, out, err = command_line("parity", *sides, *options, "--output", "out")
        return status, out or err

    return run


@pytest.mark.parametrize("options", [(), pytest.param(("--steps", "2"), marks=pytest.mark.slow)])
def test_shared_layers_sparse_gradients_and_labels_for_the_loss_pass(options, compare_pair):
    status, out = compare_pair(PORT, *options)
    assert status == 0 and "4 random draws of the two sides were matched" in out, out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_port_is_named(fault, compare_pair):
    original_code, faulty_code, headline_place = FAULTS[fault]
    assert PORT.count(original_code) == 1
    status, out = compare_pair(PORT.replace(original_code, faulty_code))
    assert status == 1 and out.startswith("DRIFT ") and headline_place in out.splitlines()[0], out


OPTIMIZER = """

def optimizer(model):
    return paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=nn.ClipGradByNorm(0.01))
"""


@pytest.mark.slow
def test_an_operation_without_a_float64_kernel_is_reported_with_advice(compare_pair, monkeypatch):
    monkeypatch.setattr(
        "test_pair_crashes.REFERENCE",
        f"{REFERENCE}\n\ndef optimizer(model):\n    return torch.optim.SGD(model.parameters(), 0.1)\n",
    )
    dense = PORT.replace(", sparse=True", "") + OPTIMIZER
    line = dense.splitlines().index("def optimizer(model):") + 1
    status, output = compare_pair(dense, "--steps", "2")
    assert status == 2 and output == (
        f"error: the port could not run: port.py:{line}: Paddle has no float64 kernel of clip_by_norm; "
        "--dtype float32 judges such a port\n"
    )
    assert compare_pair(dense, "--steps", "2", "--dtype", "float32")[0] == 1


LACKING = (
    "(NotFound) The kernel with key (CPU, Undefined(AnyLayout), float64) of kernel `some_grad` is not registered. "
    "Selected wrong DataType `float64`. Paddle support following DataTypes: {}."
)


@pytest.mark.parametrize(("dtypes", "is_lacking"), [("float16, float32", True), ("float16", False)])
def test_a_backward_without_a_float64_kernel_is_a_users_error(dtypes, is_lacking, tmp_path):
    path = tmp_path / "port.py"
    with pytest.raises(user_code.UserCodeError if is_lacking else RuntimeError) as raised_error:  # noqa: SIM117
        with user_code.running(path, alone=False):
            raise RuntimeError(LACKING.format(dtypes))
    assert ("Paddle has no float64 kernel of some_grad; --dtype float32" in str(raised_error.value)) == is_lacking
