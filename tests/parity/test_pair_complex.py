"""Test a pair that computes with complex numbers: real and imaginary parts are compared, operation by operation."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from toolkit.parity.measure.real_numbers import as_complex, as_real

PAIR = Path(__file__).parents[1] / "pairs" / "complex"
PARITY_COMMAND = ("parity", "--port", "port.py", "--reference-model", "reference.py", "--output", "out")


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Path:
    """Change to a folder with both sides, and return it."""
    shutil.copytree(PAIR, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit_line(path: Path, original_code: str, faulty_code: str) -> int:
    """Change a line of a file, and return its number."""
    text = path.read_text()
    assert text.count(original_code) == 1
    path.write_text(text.replace(original_code, faulty_code))
    return text[: text.index(original_code)].count("\n") + 1


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_survive_a_round_trip_through_real_pairs(shape, dtype):
    draws = np.random.default_rng(0)
    value = np.asarray(draws.normal(size=shape) + 1j * draws.normal(size=shape), dtype=dtype).T
    pairs = as_real(value)
    assert pairs.dtype == value.real.dtype and np.array_equal(pairs[..., 1], value.imag)
    assert np.array_equal(as_complex(pairs), value) and as_complex(pairs).dtype == dtype
    assert np.array_equal(as_real(value.real), value.real)


def test_the_correct_port_passes(pair, command_line):
    status, out, _ = command_line(*PARITY_COMMAND)
    assert status == 0 and out.startswith("PARITY "), out
    assert "buffer:attention.turns: the port's own is within" in out


@pytest.mark.parametrize(
    ("original_code", "faulty_code", "function_name"),
    [
        ("paddle.complex(self.real, self.imag)", "paddle.complex(self.real, -self.imag)", "scale (port.py:{line})"),
        ("self._complex(one) * self.turns", "self._complex(one) * self.turns.conj()", "conj (port.py:{line})"),
        ("rfft(x, axis=1)", "rfft(x, axis=1, norm='ortho')", "fft_r2c (port.py:{line})"),
        ("paddle.sin(angles)", "-paddle.sin(angles)", "attention.turns"),
    ],
    ids=["weights", "positions", "norm", "table"],
)  # fmt: skip
def test_a_faulty_line_is_named(pair, command_line, original_code, faulty_code, function_name):
    line = edit_line(pair / "port.py", original_code, faulty_code)
    status, out, _ = command_line(*PARITY_COMMAND, "--dtype", "float64")
    assert status == 1 and function_name.format(line=line) in out, out


def test_a_complex_parameter_is_rejected(pair, command_line):
    right = "self.real, self.imag = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))"
    edit_line(
        pair / "reference.py", right, "self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))"
    )
    status, _, err = command_line(*PARITY_COMMAND)
    assert status == 2 and err == (
        "error: the reference could not run: reference.py: spectrum.weight is a parameter of complex numbers; keep its "
        "real and imaginary parts as two\n"
    )
