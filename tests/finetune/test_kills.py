"""A run that is killed, however often and wherever, ends with the bits of the run that never was; nothing is left over.

``KILLS`` in the environment asks for more kills of each task than the suite makes each time, ``SOAK_SECONDS`` for a
longer soak.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from kills import assert_same_bits, finetune, run_with_kills, write_recipes
from recipe_fuzz import BASES

pytestmark = pytest.mark.slow
SEED = 20261122
KILLS = str(Path(__file__).parents[1] / "kills.py")


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    return write_recipes(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("number", range(len(BASES)), ids=[name.replace(" ", "-") for name in BASES])
def test_a_run_that_is_killed_at_random_ends_with_the_same_bits(recipes, number, tmp_path):
    whole = tmp_path / "whole"
    assert finetune(recipes[number], whole).wait() == 0
    draws, wanted = random.Random(SEED + number), int(os.environ.get("KILLS", 1))
    kills = trial = 0
    while kills < wanted:
        run = tmp_path / f"killed-{trial}"
        kills += run_with_kills(recipes[number], run, min(4, wanted - kills), draws)
        assert_same_bits(run, whole)
        trial += 1


def test_hours_of_kills_and_gates_leave_nothing_behind():
    seconds = os.environ.get("SOAK_SECONDS", "1")
    done = subprocess.run([sys.executable, KILLS, "--seconds", seconds], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
