"""Test that both sides use the reference's random slopes of a randomized leaky ReLU."""

from __future__ import annotations

import pytest

REFERENCE = """
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 12), nn.RReLU(0.125, 0.5), nn.Linear(12, 3)

    def forward(self, x, y):
        x = F.rrelu(self.act(self.first(x)) - 0.125, 0.25, 0.375, self.training)
        return F.cross_entropy(self.last(x), y)


def build(config):
    return Net()
"""
BATCH = """

def batch(config, rng):
    return {"x": rng.standard_normal((5, 6)), "y": rng.integers(0, 3, 5)}
"""


@pytest.mark.parametrize(("upper", "verdict"), [("0.5", "PARITY "), ("0.51", "DRIFT mul (")])
def test_random_slopes_are_replayed(upper, verdict, command_line, tmp_path):
    port = (
        REFERENCE.replace("torch", "paddle").replace("nn.Module", "nn.Layer").replace("0.125, 0.5", f"0.125, {upper}")
    )
    (tmp_path / "reference.py").write_text(REFERENCE + BATCH)
    (tmp_path / "port.py").write_text(port)
    sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    status, out, err = command_line("parity", *sides, "--output", tmp_path)
    assert out.startswith(verdict) and status == verdict.startswith("DRIFT"), out + err
    assert " 2 random draws of the two sides were matched" in out
