"""Test which evaluation is the best: the first of equal evaluations, for metrics of both directions."""

from __future__ import annotations

import math

import pytest

from toolkit.training.schedule import Best


def find_best(values: list[float], lower_is_better: bool) -> int | None:
    """Return the number of the best evaluation, counted from 1."""
    best = Best()
    for step, value in enumerate(values, 1):
        if best.better(value, lower_is_better=lower_is_better):
            best = Best(step, value)
    return best.best_step


@pytest.mark.parametrize(
    ("values", "lowest", "highest"),
    [
        ([0.5, 0.5, 0.5], 1, 1),
        ([0.7, 0.5, 0.7, 0.5], 2, 1),
        ([0.5, 0.7, 0.5, 0.7], 1, 2),
        ([0.0, 0.0], 1, 1),
        ([math.nan, 0.5, math.inf, -math.inf, 0.4, 0.5], 5, 2),
        ([math.nan], None, None),
        ([-1.0, -2.0, -2.0], 2, 1),
    ],
)
def test_the_first_of_equal_evaluations_is_kept(values, lowest, highest):
    assert find_best(values, lower_is_better=True) == lowest
    assert find_best(values, lower_is_better=False) == highest
