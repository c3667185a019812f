"""Test that a killed run ends with the same bits as an uninterrupted run, and that nothing is left over."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from kills import assert_same_bits, finetune, run_with_kills, write_recipes
from recipe_fuzz import BASES
from soak import some, times

pytestmark = pytest.mark.slow
SEED = 20261122
KILLS = str(Path(__file__).parents[1] / "kills.py")


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    return write_recipes(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("number", some(range(len(BASES))), ids=[name.replace(" ", "-") for name in some([*BASES])])
def test_a_run_that_is_killed_at_random_moments_ends_with_equal_weights(recipes, number, tmp_path):
    whole_run = tmp_path / "whole"
    assert finetune(recipes[number], whole_run).wait() == 0
    draws, total_kills = random.Random(SEED + number), times(1, 10)
    kills = trial = 0
    while kills < total_kills:
        run = tmp_path / f"killed-{trial}"
        kills += run_with_kills(recipes[number], run, min(4, total_kills - kills), draws)
        assert_same_bits(run, whole_run)
        trial += 1


def test_hours_of_kills_and_gates_leave_nothing_behind():
    soak = [sys.executable, KILLS, "--seconds", str(times(1, 3600))]
    result = subprocess.run(soak, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
