"""Whatever a recipe says: one line for each thing that is wrong, at its place; and what is accepted trains a step."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from recipe_fuzz import Worker, likely_recipes, recipes
from soak import times

SEED = 20261122
#: What every line of an error begins with.
PLACE = re.compile(r"(x\.yaml:\d+|command line)(: |$)")


def examples(count: int):
    """Settings of a search that shows each failure once, and neither shrinks nor remembers it: a recipe that ends the
    worker takes seconds each time."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("recipes"))
    yield worker
    worker.close()


def assert_said(told: dict, case: tuple) -> None:
    """What is refused is refused by lines with their places, and nothing else happens."""
    assert not {"traceback", "hung", "crashed"} & told.keys(), (told, case)
    for message in ("refused", "stopped"):
        if message in told:
            assert told["status"] == 2 or message == "stopped", (told, case)
            lines = told[message].splitlines()
            assert lines and all(map(str.isprintable, lines)), (told, case)
            if told["status"] == 2:
                assert all(map(PLACE.match, lines)), (told, case)


def tried(worker: Worker, strategy, train: bool, count: int) -> list[dict]:
    answers = []

    @seed(SEED)
    @examples(count)
    @given(strategy)
    def trial(case) -> None:
        told = worker.ask(*case, train)
        assert_said(told, case)
        answers.append(told)

    trial()
    return answers


def test_a_wrong_recipe_is_refused_in_lines_that_name_their_place(worker):
    answers = tried(worker, recipes(), False, 100)
    assert sum("refused" in told for told in answers) > len(answers) / 2


@pytest.mark.slow
def test_many_wrong_recipes_are_refused_in_lines_that_name_their_place(worker):
    answers = tried(worker, recipes(), False, times(700, 20000))
    assert sum("refused" in told for told in answers) > len(answers) / 2


@pytest.mark.slow
def test_a_recipe_that_is_accepted_trains_a_step_or_says_why_not(worker):
    answers = tried(worker, likely_recipes(), True, times(60, 2000))
    assert sum("trained" in told for told in answers) > len(answers) / 4
