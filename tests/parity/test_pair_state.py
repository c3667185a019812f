"""Test that constant parameters and buffers of a pair are randomized.

Each element of a buffer is judged by its own size.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from toolkit.parity.inputs.synthetic import randomize_constant_buffers
from toolkit.parity.job.buffers import hide_initial_infinities, restore_initial_infinities
from toolkit.parity.measure.constants import UNIT, measure_table_error

PAIR = Path(__file__).parents[1] / "pairs" / "state"
#: By options of the command, the start of the headline of the faulty port.
FAULTS = {
    ("state=gate",): "mul (",
    ("state=router",): "sum (",
    ("state=frozen",): "sub (",
    ("state=distance",): "layer (DistanceBias",
    ("state=distance", "masked=-inf"): "layer (DistanceBias",
    ("state=distance", "masked=-10000"): "layer (DistanceBias",
    ("state=positions",): "layer (Positions",
    ("state=positions", "--dtype", "float32"): "layer (Positions",
}


@pytest.fixture
def run_gate(command_line, tmp_path):
    """Return a function that runs a gate of the pair and returns its status and its first line."""

    def run(*options: str) -> tuple[int, str]:
        sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py")
        status, out, err = command_line("parity", *sides, *options, "--output", tmp_path)
        return status, (out or err).splitlines()[0]

    return run


@pytest.mark.parametrize("options", FAULTS, ids=" ".join)
def test_a_correct_port_with_constant_state_passes(options, run_gate):
    status, line = run_gate(*options)
    assert (status, line.partition(" ")[0]) == (0, "PARITY"), line


@pytest.mark.parametrize("options", FAULTS, ids=" ".join)
def test_a_fault_cannot_hide_behind_constant_state(options, run_gate):
    status, line = run_gate(*options, "wrong=true")
    assert status == 1 and line.startswith(f"DRIFT {FAULTS[options]}"), line


def test_constant_buffers_of_real_numbers_are_moved_away_from_zero():
    buffers = {
        "zeros": np.zeros(50),
        "ones": np.ones(50, np.float32),
        "negative": np.full((5, 1), -2.0),
        "one number": np.zeros(1),
        "table": np.arange(3.0),
        "infinite": np.full(4, np.inf),
        "integers": np.zeros(4, np.int64),
        "empty": np.zeros(0),
    }
    new_buffers = randomize_constant_buffers(buffers, 7)
    assert list(new_buffers) == ["zeros", "ones", "negative", "one number"]
    assert (new_buffers["zeros"] > 0).all() and (new_buffers["ones"] > 1).all() and (new_buffers["negative"] < -2).all()
    for name, value in new_buffers.items():
        assert value.shape == buffers[name].shape and value.dtype == buffers[name].dtype
        assert np.abs(value - buffers[name]).max() < 1


def compute_error(exact: list[float], own: list[float], dtype: type = np.float64) -> float:
    truth = np.array(exact)
    return measure_table_error(np.array(own, dtype), truth, truth.astype(np.float32))


@pytest.mark.parametrize("mask_value", [-1e4, -1e9, -3.4e38, -math.inf])
def test_a_small_number_is_judged_next_to_a_masks_number(mask_value):
    assert compute_error([mask_value, 0.5, 0.25], [mask_value, 0.5, 0.25]) == 0.0
    assert compute_error([mask_value, 0.5, 0.25], [mask_value, 0.5, 0.25 * (1 + UNIT)]) == pytest.approx(0.5)
    assert compute_error([mask_value, 0.5, 0.25], [mask_value, 0.5, 0.2501]) > 1000
    assert compute_error([mask_value, 0.5, 0.0], [mask_value, 0.5, 0.001]) > 1000


def test_a_small_number_of_a_table_is_judged_by_its_own_size():
    frequencies = [1e6 ** -(n / 8) for n in range(8)]
    wrong_frequencies = [*frequencies[:-1], 1.1 * frequencies[-1]]
    assert 0 < compute_error(frequencies, [float(np.float32(frequency)) for frequency in frequencies]) < 1
    assert compute_error(frequencies, wrong_frequencies) > 100 * 8


def test_the_remainder_of_a_cancellation_is_rounding_of_the_largest_number():
    assert compute_error([1.0, 1.2e-16, 0.0], [1.0, -4.4e-8, 1e-8]) < 1


def test_infinities_and_integers_must_be_equal():
    assert compute_error([math.nan, 1.0], [math.nan, 1.0]) == 0.0
    for exact, own in (([-math.inf, 1.0], [-1e9, 1.0]), ([-math.inf], [math.inf]), ([1.0], [math.nan])):
        assert compute_error(exact, own) == math.inf
    assert measure_table_error(np.array([1, 2]), np.array([1, 3]), np.array([1, 3])) == math.inf
    assert compute_error([0.0], [1e-30]) == math.inf


def test_in_float32_the_references_own_rounding_counts():
    angles = np.arange(600)[:, None] * 10000.0 ** (-np.arange(0, 12, 2) / 12)
    exact, in_float32 = np.sin(angles), np.sin(angles.astype(np.float32))
    powers = (np.float32(10000.0) ** (-np.arange(0, 12, 2, dtype=np.float32) / np.float32(12))).astype(np.float32)
    own = np.sin(np.arange(600, dtype=np.float32)[:, None] * powers)
    assert 0.5 < measure_table_error(own, exact, in_float32) < 8
    assert measure_table_error(own.astype(np.float64), exact, in_float32) > 100
    assert measure_table_error(np.sin(1.001 * angles).astype(np.float32), exact, in_float32) > 8


def test_infinities_of_a_mask_are_removed_and_restored():
    initial = np.array([-np.inf, 0.5, np.nan, np.inf])
    finite_values = hide_initial_infinities(initial.copy(), initial)
    assert np.isfinite(finite_values).all() and np.abs(finite_values[[0, 2, 3]]).max() < 1e-300
    np.testing.assert_array_equal(restore_initial_infinities(finite_values, initial), initial)
    updated_values = np.array([-np.inf, np.inf, 0.0, 3.0])  # an observer's minimum and maximum begin as infinities
    finite_values = hide_initial_infinities(updated_values, initial)
    assert finite_values[1] == np.inf and finite_values[2] == 0.0 and finite_values[3] == 3.0
    np.testing.assert_array_equal(restore_initial_infinities(finite_values, initial), updated_values)


def test_a_weights_file_keeps_its_numbers_in_float64(tmp_path):
    """A `build` may read a checkpoint while the run in float64 widens every other request for float32."""
    import torch
    from safetensors.torch import load_file, save_file

    from toolkit.parity.families.pair.reference_patches import Float64Mode

    weights = torch.linspace(-1, 1, 12).reshape(3, 4)
    save_file({"float32": weights, "bfloat16": weights.bfloat16()}, tmp_path / "model.safetensors")
    with Float64Mode():
        read = load_file(tmp_path / "model.safetensors")
        bfloat16_weights = read["bfloat16"].to(torch.float32)
    assert torch.equal(read["float32"], weights) and torch.equal(read["bfloat16"], weights.bfloat16())
    assert bfloat16_weights.dtype == torch.float64
