"""Test data.label_names: labels have the names of the recipe, and a missing name is reported at its line."""

from __future__ import annotations

import datasets
import pytest
from test_data import HEAD, cache, error_of, recipe  # noqa: F401

from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification


def rows(*labels, count: int = 6) -> list[dict]:
    return [{"text": f"text {index}", "label": labels[index % len(labels)]} for index in range(count)]


def names_and_ids(loaded_recipe) -> tuple[list[str], list[int]]:
    splits = classification.load_splits(loaded_recipe)
    return splits["train"].features["label"].names, splits["train"]["label"][:]


@pytest.mark.parametrize(
    ("names_text", "stored_labels", "names", "ids"),
    [
        ("{0: negative, 1: positive}", (1, 0), ["negative", "positive"], [1, 0]),
        ("{1: positive, 0: negative}", (1, 0), ["negative", "positive"], [1, 0]),
        ("[negative, positive]", ("1", "0"), ["negative", "positive"], [1, 0]),
        ("{neg: negative, pos: positive}", ("pos", "neg"), ["negative", "positive"], [1, 0]),
        ("[warm, cold]", ("cold", "warm"), ["warm", "cold"], [1, 0]),
        ("{false: spam, true: 1}", (True, False), ["spam", "1"], [1, 0]),
        ("{1: a, 10: c, 2: b}", (10, 1, 2), ["a", "b", "c"], [2, 0, 1]),
    ],
)
def test_labels_have_the_names_of_the_recipe(recipe, names_text, stored_labels, names, ids):  # noqa: F811
    loaded_recipe = recipe(
        f"  label_names: {names_text}\n", train=rows(*stored_labels), validation=rows(*stored_labels)
    )
    assert names_and_ids(loaded_recipe) == (names, ids * (6 // len(ids)))


def test_a_named_label_that_training_lacks_is_a_note(recipe):  # noqa: F811
    loaded_recipe = recipe("  label_names: {0: bad, 1: so-so, 2: good}\n", train=rows(2, 0), validation=rows(2))
    assert names_and_ids(loaded_recipe) == (["bad", "so-so", "good"], [2, 0] * 3)
    assert "no row of the train split has the label 1 (so-so)" in loaded_recipe.findings.notes


def test_named_labels_of_the_data_can_be_renamed(tmp_path):
    kind = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["0", "1"])})
    datasets.Dataset.from_list(rows(1, 0), features=kind).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: parquet\n  files: {train: t.parquet, validation: t.parquet}\n")
    assert names_and_ids(load_recipe(tmp_path / "x.yaml"))[0] == ["0", "1"]
    calling = load_recipe(tmp_path / "x.yaml", ["data.label_names=[no, yes]"])
    assert names_and_ids(calling) == (["no", "yes"], [1, 0] * 3)
    with pytest.raises(UserError, match=r"command line: data.label_names: 3 names; the data has 2 labels: 0, 1$"):
        classification.load_splits(load_recipe(tmp_path / "x.yaml", ["data.label_names=[no, yes, so]"]))


@pytest.mark.parametrize(
    ("names_text", "expected_error"),
    [
        ("{0: bad, 1: good}", "data.label_names: does not name the label 2, which the data has; named: 0, 1"),
        ("{0: bad, x: good, 2: c}", "data.label_names.x: the data has no label x, its labels are whole numbers: 0, 2"),
    ],
)
def test_a_label_without_a_name_is_reported_in_one_line(recipe, names_text, expected_error):  # noqa: F811
    loaded_recipe = recipe(f"  label_names: {names_text}\n", train=rows(0, 2), validation=rows(0, 2))
    assert error_of(loaded_recipe) == f":11: {expected_error}"


@pytest.mark.parametrize(
    ("names_text", "expected_error"),
    [
        ("5", "5 names no labels; write"),
        ("[a]", "1 named; classification needs two labels or more"),
        ("[a, [b]]", "names no labels"),
        ("{0: a, 1: a}", "1 named; classification needs two labels or more"),
        ("[a, b, a]", "a is in the list twice"),
        ('[a, " "]', "a name is empty"),
    ],
)
def test_invalid_names_are_refused_at_their_line(recipe, names_text, expected_error):  # noqa: F811
    with pytest.raises(UserError) as error_info:
        recipe(f"  label_names: {names_text}\n")
    assert "x.yaml:11: data.label_names: " in str(error_info.value) and expected_error in str(error_info.value)
    assert len(str(error_info.value).splitlines()) == 1


def test_blanks_around_a_label_are_removed_and_counted(recipe):  # noqa: F811
    loaded_recipe = recipe(train=rows(" bad", "good", "bad ", "\u00a0good"), validation=rows("good ", "bad"))
    assert names_and_ids(loaded_recipe) == (["bad", "good"], [0, 1, 0, 1, 0, 1])
    assert (
        "4 train rows have blanks around their label, such as ' bad'; they are removed" in loaded_recipe.findings.notes
    )
    assert (
        "3 validation rows have blanks around their label, such as 'good '; they are removed"
        in loaded_recipe.findings.notes
    )


def test_blanks_around_one_of_several_labels_are_removed(recipe):  # noqa: F811
    lists = [{"text": "a", "label": ["x ", "y"]}, {"text": "b", "label": [" y"]}, {"text": "c", "label": ["x"]}]
    splits = classification.load_splits(recipe("  problem_type: multi_label\n", train=lists, validation=lists))
    assert splits["train"].features["label"].feature.names == ["x", "y"]
    assert splits["train"]["label"][:] == [[0, 1], [1], [0]]


@pytest.mark.parametrize(
    ("labels", "is_noted"),
    [
        (("bad", "Bad", "good"), True),
        (("very bad", "very  bad", "good"), True),
        (("caf\u00e9", "cafe\u0301", "bar"), True),
        (("bad", "good", "badly"), False),
    ],
)
def test_labels_that_differ_only_by_capitals_or_blanks_are_noted(recipe, labels, is_noted):  # noqa: F811
    loaded_recipe = recipe(train=rows(*labels), validation=rows(*labels))
    assert len(names_and_ids(loaded_recipe)[0]) == 3
    notes = [
        note
        for note in loaded_recipe.findings.notes
        if note.startswith("labels that differ only by capitals or blanks")
    ]
    assert len(notes) == is_noted
    assert all(f"{labels[0]!r}" in note and f"{labels[1]!r}" in note and "good" not in note for note in notes)


def test_labels_of_one_name_are_joined(recipe):  # noqa: F811
    data_lines = "  label_names: {bad: bad, Bad: bad, BAD: bad, good: good}\n"
    loaded_recipe = recipe(data_lines, train=rows("good", "Bad", "BAD", "bad"), validation=rows("Bad", "good"))
    assert names_and_ids(loaded_recipe) == (["bad", "good"], [1, 0, 0, 0, 1, 0])
    assert not any("capitals" in note for note in loaded_recipe.findings.notes)
    splits = classification.load_splits(loaded_recipe)
    assert splits["validation"]["label"][:] == [0, 1] * 3


def test_several_labels_of_one_name_are_joined(recipe):  # noqa: F811
    lists = [{"text": "a", "label": ["x", "X"]}, {"text": "b", "label": ["y"]}, {"text": "c", "label": ["X"]}]
    data_lines = "  problem_type: multi_label\n  label_names: {x: x, X: x, y: y}\n"
    splits = classification.load_splits(recipe(data_lines, train=lists, validation=lists))
    assert splits["train"].features["label"].feature.names == ["x", "y"]
    assert splits["train"]["label"][:] == [[0], [1], [0]]
