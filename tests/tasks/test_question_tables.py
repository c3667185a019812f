"""Test questions in csv and flat rows: integers and lists in cells, without ids, without positions of answers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from test_data import HEAD, cache  # noqa: F401

from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.question_answering import squad
from toolkit.tasks.question_answering import task as question_answering
from toolkit.tasks.question_answering.placement import FIRST, NORMALIZED_MATCH, ONLY, Placement, find_answer

CONTEXTS = ["The part of art is art.", "She said “yes” in 1956.", "No more."]


def recipe(folder: Path, columns: list[str], rows: list[list], more: str = "") -> Recipe:
    with (folder / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    files = f"  files: {{train: {folder / 'a.csv'}}}\n  validation_fraction: 0.34\n  stride: 4\n"
    (folder / "x.yaml").write_text(f"task: question_answering\n{HEAD}  dataset: csv\n{files}{more}")
    return load_recipe(folder / "x.yaml")


def answers_of(loaded_recipe: Recipe) -> dict[str, tuple[list[str], list[int]]]:
    """Return the answers and positions of each id, of all splits."""
    rows = [row for split_rows in question_answering.load_splits(loaded_recipe).values() for row in split_rows]
    return {row["id"]: (row["answers"]["text"], row["answers"]["answer_start"]) for row in rows}


def test_csv_may_hold_positions_lists_and_no_answers(tmp_path):
    columns = ["id", "question", "context", "answer", "answer_start", "is_impossible"]
    rows = [
        ["a", "?", CONTEXTS[0], "art", "12.0", "False"],
        ["b", "?", CONTEXTS[1], "['She', '1956']", "[0, 18]", ""],
        ["c", "?", CONTEXTS[2], "", "", "True"],
    ]
    assert answers_of(recipe(tmp_path, columns, rows)) == {
        "a": (["art"], [12]),
        "b": (["She", "1956"], [0, 18]),
        "c": ([], []),
    }
    answers_cell = "{'text': ['art', 'The'], 'answer_start': [12, 0]}"
    no_answers_cell = "{'text': [], 'answer_start': []}"
    rows = [[name, "?", context, no_answers_cell] for name, context in zip("abc", CONTEXTS, strict=True)]
    rows[0][3] = answers_cell
    loaded_recipe = recipe(tmp_path, ["id", "question", "context", "answers"], rows)
    assert answers_of(loaded_recipe)["a"] == (["art", "The"], [12, 0])


def test_missing_ids_and_positions_are_replaced(tmp_path):
    columns, more = ["q", "context", "a"], "  question: q\n  answers: a\n"
    rows = [["?", CONTEXTS[0], "art"], ["?", CONTEXTS[1], '"yes"'], ["?", CONTEXTS[2], "more"]]
    with pytest.raises(UserError) as error_info:
        question_answering.load_splits(recipe(tmp_path, columns, rows, more))
    message = str(error_info.value)
    assert "3 of 3 questions have no answer_start: '1' (the place of 'art')" in message
    assert "set data.misplaced_answers to find (finds 3 of them" in message
    loaded_recipe = recipe(tmp_path, columns, rows, more + "  misplaced_answers: find\n")
    assert answers_of(loaded_recipe) == {"1": (["art"], [12]), "2": (["“yes”"], [9]), "3": (["more"], [3])}
    (note,) = [note for note in loaded_recipe.findings.notes if "no answer_start" in note]
    assert "3 found (" in note and all(f"1 {placement}" in note for placement in (FIRST, ONLY, NORMALIZED_MATCH))


def test_an_answer_without_a_position_prefers_a_whole_word():
    assert find_answer("art: party", "art", squad.UNKNOWN_START) == Placement(0, "art", ONLY)
    assert find_answer("party, art", "art", squad.UNKNOWN_START).start == 7
    assert find_answer("partys", "art", squad.UNKNOWN_START).start == 1
    assert find_answer("北京是首都", "首都", squad.UNKNOWN_START).start == 3
    assert find_answer("nothing", "art", squad.UNKNOWN_START) is None


def test_a_named_column_must_exist(tmp_path):
    loaded_recipe = recipe(tmp_path, ["question", "context", "answer"], [["?", "x", "x"]] * 3, "  id: key\n")
    with pytest.raises(UserError, match="no column key in the train split"):
        question_answering.load_splits(loaded_recipe)
    loaded_recipe = recipe(tmp_path, ["question", "context", "reply"], [["?", "x", "x"]] * 3)
    with pytest.raises(UserError, match="no column answers in the train split"):
        question_answering.load_splits(loaded_recipe)
