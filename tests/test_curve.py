"""The losses after an update: what the rounding of Adam's bias correction may cost them."""

from __future__ import annotations

import pytest

from toolkit.parity.curve import allowance, scale_error

REFERENCE = {
    "facts": {"optimizer": {"beta1": 0.9, "beta2": 0.999, "learning_rate": 0.25}},
    "tensors": {"loss": {"rms": 9.0}, "loss#2": {"rms": 7.0}, "loss#3": {"rms": 5.0}},
}


def test_the_powers_of_beta_lose_digits_in_float32_from_the_second_step_on():
    assert scale_error(0.9, 0.999, 1) == 0.0
    assert scale_error(0.9, 0.999, 2) == pytest.approx(-3.4e-6, rel=0.01)
    assert scale_error(0.875, 0.96875, 2) == pytest.approx(0, abs=1e-15)  # exact in float32


def test_only_what_comes_after_the_second_update_is_allowed_for_and_only_in_float32():
    assert allowance("updated:a#2", REFERENCE, "float32") == pytest.approx(2 * 3.4e-6 * 0.25, rel=0.01)
    assert allowance("loss#3", REFERENCE, "float32") == pytest.approx(2 * 3.4e-6 * 2.0, rel=0.01)
    for name, dtype in (("loss#3", "float64"), ("loss#2", "float32"), ("loss", "float32"), ("updated:a", "float32")):
        assert allowance(name, REFERENCE, dtype) == 0.0
