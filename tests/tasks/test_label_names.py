"""data.label_names: what labels are called is what the recipe says; what it forgets is one line at its place."""

from __future__ import annotations

import datasets
import pytest
from test_data import HEAD, cache, problem, recipe  # noqa: F401

from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification


def rows(*labels, count: int = 6) -> list[dict]:
    return [{"text": f"text {index}", "label": labels[index % len(labels)]} for index in range(count)]


def names_and_ids(loaded) -> tuple[list[str], list[int]]:
    splits = classification.load_splits(loaded)
    return splits["train"].features["label"].names, splits["train"]["label"][:]


@pytest.mark.parametrize(
    ("written", "stored", "names", "ids"),
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
def test_labels_are_called_as_the_recipe_says(recipe, written, stored, names, ids):  # noqa: F811
    made = recipe(f"  label_names: {written}\n", train=rows(*stored), validation=rows(*stored))
    assert names_and_ids(made) == (names, ids * (6 // len(ids)))


def test_a_named_label_that_training_lacks_is_a_note(recipe):  # noqa: F811
    made = recipe("  label_names: {0: bad, 1: so-so, 2: good}\n", train=rows(2, 0), validation=rows(2))
    assert names_and_ids(made) == (["bad", "so-so", "good"], [2, 0] * 3)
    assert "no row of the train split has the label 1 (so-so)" in made.found.notes


def test_named_labels_of_the_data_can_be_called_otherwise(tmp_path):
    kind = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["0", "1"])})
    datasets.Dataset.from_list(rows(1, 0), features=kind).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: parquet\n  files: {train: t.parquet, validation: t.parquet}\n")
    assert names_and_ids(load_recipe(tmp_path / "x.yaml"))[0] == ["0", "1"]
    calling = load_recipe(tmp_path / "x.yaml", ["data.label_names=[no, yes]"])
    assert names_and_ids(calling) == (["no", "yes"], [1, 0] * 3)
    with pytest.raises(UserError, match=r"command line: data.label_names: 3 names; the data has 2 labels: 0, 1$"):
        classification.load_splits(load_recipe(tmp_path / "x.yaml", ["data.label_names=[no, yes, so]"]))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{0: bad, 1: good}", "data.label_names: does not name the label 2, which the data has; named: 0, 1"),
        ("{0: bad, x: good, 2: c}", "data.label_names.x: the data has no label x, its labels are whole numbers: 0, 2"),
    ],
)
def test_a_label_that_is_not_named_is_one_line(recipe, written, said):  # noqa: F811
    made = recipe(f"  label_names: {written}\n", train=rows(0, 2), validation=rows(0, 2))
    assert problem(made) == f":11: {said}"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("5", "5 names no labels; write"),
        ("[a]", "1 named; classification needs two labels or more"),
        ("[a, [b]]", "names no labels"),
        ("{0: a, 1: a}", "1 named; classification needs two labels or more"),
        ("[a, b, a]", "a is in the list twice"),
        ('[a, " "]', "a name is empty"),
    ],
)
def test_names_that_are_none_are_refused_at_their_line(recipe, written, said):  # noqa: F811
    with pytest.raises(UserError) as raised:
        recipe(f"  label_names: {written}\n")
    assert "x.yaml:11: data.label_names: " in str(raised.value) and said in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_blanks_around_a_label_are_removed_and_counted(recipe):  # noqa: F811
    made = recipe(train=rows(" bad", "good", "bad ", "\u00a0good"), validation=rows("good ", "bad"))
    assert names_and_ids(made) == (["bad", "good"], [0, 1, 0, 1, 0, 1])
    assert "4 train rows have blanks around their label, such as ' bad'; they are removed" in made.found.notes
    assert "3 validation rows have blanks around their label, such as 'good '; they are removed" in made.found.notes


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
    made = recipe(train=rows(*labels), validation=rows(*labels))
    assert len(names_and_ids(made)[0]) == 3
    notes = [note for note in made.found.notes if note.startswith("labels that differ only by capitals or blanks")]
    assert len(notes) == is_noted
    assert all(f"{labels[0]!r}" in note and f"{labels[1]!r}" in note and "good" not in note for note in notes)


def test_labels_of_one_name_are_joined(recipe):  # noqa: F811
    written = "  label_names: {bad: bad, Bad: bad, BAD: bad, good: good}\n"
    made = recipe(written, train=rows("good", "Bad", "BAD", "bad"), validation=rows("Bad", "good"))
    assert names_and_ids(made) == (["bad", "good"], [1, 0, 0, 0, 1, 0])
    assert not any("capitals" in note for note in made.found.notes)
    splits = classification.load_splits(made)
    assert splits["validation"]["label"][:] == [0, 1] * 3


def test_several_labels_of_one_name_are_joined(recipe):  # noqa: F811
    lists = [{"text": "a", "label": ["x", "X"]}, {"text": "b", "label": ["y"]}, {"text": "c", "label": ["X"]}]
    written = "  problem_type: multi_label\n  label_names: {x: x, X: x, y: y}\n"
    splits = classification.load_splits(recipe(written, train=lists, validation=lists))
    assert splits["train"].features["label"].feature.names == ["x", "y"]
    assert splits["train"]["label"][:] == [[0], [1], [0]]
