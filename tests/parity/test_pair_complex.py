"""A pair that computes with complex numbers: both parts are compared, operation by operation."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from toolkit.parity.measure.real_numbers import as_complex, as_real

PAIR = Path(__file__).parents[1] / "pairs" / "complex"
ASKED = ("parity", "--port", "port.py", "--reference-model", "reference.py", "--output", "out")


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Path:
    """A folder with both sides, in which the command runs."""
    shutil.copytree(PAIR, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(path: Path, right: str, wrong: str) -> int:
    """Change a line of a file; returns its number."""
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    return text[: text.index(right)].count("\n") + 1


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_are_pairs_of_real_ones_and_back(shape, dtype):
    draws = np.random.default_rng(0)
    value = np.asarray(draws.normal(size=shape) + 1j * draws.normal(size=shape), dtype=dtype).T
    pairs = as_real(value)
    assert pairs.dtype == value.real.dtype and np.array_equal(pairs[..., 1], value.imag)
    assert np.array_equal(as_complex(pairs), value) and as_complex(pairs).dtype == dtype
    assert np.array_equal(as_real(value.real), value.real)


def test_the_right_one_passes(pair, command_line):
    status, out, _ = command_line(*ASKED)
    assert status == 0 and out.startswith("PARITY "), out
    assert "buffer:attention.turns: the port's own is within" in out


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("paddle.complex(self.real, self.imag)", "paddle.complex(self.real, -self.imag)", "scale (port.py:{line})"),
        ("self._complex(one) * self.turns", "self._complex(one) * self.turns.conj()", "conj (port.py:{line})"),
        ("rfft(x, axis=1)", "rfft(x, axis=1, norm='ortho')", "fft_r2c (port.py:{line})"),
        ("paddle.sin(angles)", "-paddle.sin(angles)", "attention.turns"),
    ],
    ids=["weights", "positions", "norm", "table"],
)  # fmt: skip
def test_a_wrong_one_is_named_by_its_line(pair, command_line, right, wrong, named):
    line = edit(pair / "port.py", right, wrong)
    status, out, _ = command_line(*ASKED, "--dtype", "float64")
    assert status == 1 and named.format(line=line) in out, out


def test_a_parameter_of_complex_numbers_is_refused(pair, command_line):
    right = "self.real, self.imag = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))"
    edit(pair / "reference.py", right, "self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))")
    status, _, err = command_line(*ASKED)
    assert status == 2 and err == (
        "error: the reference could not run: reference.py: spectrum.weight is a parameter of complex numbers; keep its "
        "real and imaginary parts as two\n"
    )
