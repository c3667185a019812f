"""What a report says of a pair that fails: NaN in the reference, a crash in a library, a part that one side lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

REFERENCE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8, bias=not extra), nn.Linear(8, 3)

    def forward(self, x, labels):
        x = self.first(x)
        x = (x - 100).log() if labels.sum() < 0 else x
        return nn.functional.cross_entropy(self.last(x.tanh()), labels.abs())


def build(config):
    return Net(config.get("extra", False))


def batch(config, rng):
    return {"x": rng.standard_normal((5, 6)), "labels": rng.integers(1, 3, 5) * config.get("sign", 1)}
"""
PORT = """\
from paddle import nn
from transformers_of_ours import helped


class Net(nn.Layer):
    def __init__(self, extra, shape):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        if shape:
            self.first.weight = self.first.create_parameter([3, 8])

    def forward(self, x, labels):
        x = helped(self.first(x[:, : self.first.weight.shape[0]]))
        x = (x - 100).log() if labels.sum() < 0 else x
        return nn.functional.cross_entropy(self.last(x.tanh()), labels.abs())


def build(config):
    return Net(config.get("extra", False), config.get("shape", False))
"""


@pytest.fixture
def gated(command_line, tmp_path, monkeypatch):
    """Runs a gate on the two, whose port calls a library."""
    monkeypatch.chdir(tmp_path)
    library = tmp_path / "site-packages" / "transformers_of_ours.py"
    library.parent.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(library.parent), prepend=":")

    def gate(*words: str, library_code: str = "return x") -> tuple[int, str]:
        library.write_text(f"def helped(x):\n    {library_code}\n")
        Path("port.py").write_text(PORT)
        Path("reference.py").write_text(REFERENCE)
        sides = ("--port", "port.py", "--reference-model", "reference.py")
        status, out, err = command_line("parity", *sides, *words, "--output", "out")
        return status, out or err

    return gate


def test_a_reference_that_gives_nan_is_said_with_its_line(gated):
    status, said = gated("sign=-1")
    assert status == 3 and "the reference itself is not finite in float64 (log, reference.py:12)" in said


def test_a_library_that_crashes_is_said_with_its_line(gated):
    status, said = gated(library_code="return x.no_such")
    assert status == 2
    assert said.startswith("error: the port could not run: port.py:13: transformers_of_ours.py:2: AttributeError"), said


def test_a_parameter_that_only_the_port_has_is_named_and_what_follows_is_counted(gated):
    status, said = gated("extra=true")
    assert status == 1 and said.startswith("DRIFT first (Linear, port.py:8)\n"), said
    assert "gradient:first.bias: computed by the port, has no counterpart in the reference" in said.splitlines()[1]


def test_a_parameter_of_another_shape_is_a_finding(gated):
    status, said = gated("shape=true")
    assert status == 1 and said.startswith("DRIFT first (Linear, port.py:8)\n"), said
    assert "parameter:first.weight: shape [3, 8], the reference's is [8, 6]" in said.splitlines()[1]
    assert " findings may follow from it; all are in parity.json" in said
    assert "also semantics" not in said
