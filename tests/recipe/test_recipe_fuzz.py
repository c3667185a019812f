"""Test random recipes: each error is one line with its place, and an accepted recipe trains a step."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from recipe_fuzz import Worker, likely_recipes, recipes
from soak import times

SEED = 20261122
#: The beginning of every line of an error.
PLACE = re.compile(r"(x\.yaml:\d+|command line)(: |$)")


def examples(count: int):
    """Return settings of a search that neither shrinks nor repeats failures, since each restart takes seconds."""
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


def assert_refusal_has_places(answer: dict, case: tuple) -> None:
    """Check that a refusal consists of lines with their places, and that nothing else happens."""
    assert not {"traceback", "hung", "crashed"} & answer.keys(), (answer, case)
    for message in ("refused", "stopped"):
        if message in answer:
            assert answer["status"] == 2 or message == "stopped", (answer, case)
            lines = answer[message].splitlines()
            assert lines and all(map(str.isprintable, lines)), (answer, case)
            if answer["status"] == 2:
                assert all(map(PLACE.match, lines)), (answer, case)


def try_recipes(worker: Worker, strategy, train: bool, count: int) -> list[dict]:
    answers = []

    @seed(SEED)
    @examples(count)
    @given(strategy)
    def trial(case) -> None:
        answer = worker.ask(*case, train)
        assert_refusal_has_places(answer, case)
        answers.append(answer)

    trial()
    return answers


def test_a_faulty_recipe_is_refused_in_lines_with_their_places(worker):
    answers = try_recipes(worker, recipes(), False, 100)
    assert sum("refused" in answer for answer in answers) > len(answers) / 2


@pytest.mark.slow
def test_many_faulty_recipes_are_refused_in_lines_with_their_places(worker):
    answers = try_recipes(worker, recipes(), False, times(700, 20000))
    assert sum("refused" in answer for answer in answers) > len(answers) / 2


@pytest.mark.slow
def test_an_accepted_recipe_trains_a_step_or_gives_the_reason(worker):
    answers = try_recipes(worker, likely_recipes(), True, times(60, 2000))
    assert sum("trained" in answer for answer in answers) > len(answers) / 4
