"""Test the report of a pair that fails: NaN in the reference, a crash in a library, a part missing on one side."""

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
def run_gate(command_line, tmp_path, monkeypatch):
    """Return a function that runs a gate of the two files; the port calls a library."""
    monkeypatch.chdir(tmp_path)
    library = tmp_path / "site-packages" / "transformers_of_ours.py"
    library.parent.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(library.parent), prepend=":")

    def gate(*options: str, library_code: str = "return x") -> tuple[int, str]:
        library.write_text(f"def helped(x):\n    {library_code}\n")
        Path("port.py").write_text(PORT)
        Path("reference.py").write_text(REFERENCE)
        sides = ("--port", "port.py", "--reference-model", "reference.py")
        status, out, err = command_line("parity", *sides, *options, "--output", "out")
        return status, out or err

    return gate


def test_nan_in_the_reference_is_reported_with_its_line(run_gate):
    status, output = run_gate("sign=-1")
    assert status == 3 and "the reference itself is not finite in float64 (log, reference.py:12)" in output


def test_a_crash_in_a_library_is_reported_with_its_line(run_gate):
    status, output = run_gate(library_code="return x.no_such")
    assert status == 2
    assert output.startswith("error: the port could not run: port.py:13: transformers_of_ours.py:2: AttributeError"), (
        output
    )


def test_a_parameter_of_only_the_port_is_named_and_later_differences_are_counted(run_gate):
    status, output = run_gate("extra=true")
    assert status == 1 and output.startswith("DRIFT first (Linear, port.py:8)\n"), output
    assert "gradient:first.bias: computed by the port, has no counterpart in the reference" in output.splitlines()[1]


def test_a_parameter_of_another_shape_is_a_finding(run_gate):
    status, output = run_gate("shape=true")
    assert status == 1 and output.startswith("DRIFT first (Linear, port.py:8)\n"), output
    assert "parameter:first.weight: shape [3, 8], the reference's is [8, 6]" in output.splitlines()[1]
    assert " findings may follow from it; all are in parity.json" in output
    assert "also semantics" not in output
