"""Test ``data.label``, ``data.label_separator`` and ``data.missing_labels``.

They describe several labels in one cell or in columns of 0 and 1, and rows without a label.
"""

from __future__ import annotations

import pytest
from datasets import Dataset
from test_data import HEAD, cache, error_of, recipe  # noqa: F401

from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification

SEVERAL = "  problem_type: multi_label\n"


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a recipe over a csv file with this text, with more lines of data keys."""

    def make(text: str, more: str = ""):
        (tmp_path / "train.csv").write_text(text)
        lines = f"{HEAD}  dataset: csv\n  files: {{train: {tmp_path / 'train.csv'}}}\n  validation_fraction: 0.2\n"
        (tmp_path / "x.yaml").write_text(lines + more)
        return load_recipe(tmp_path / "x.yaml")

    return make


def labels_of(recipe) -> dict[str, list[str]]:  # noqa: F811
    """Return the names of the labels of each text, of all splits."""
    labels_by_text = {}
    for rows in classification.load_splits(recipe).values():
        names = rows.features["label"].feature.names
        labels_by_text |= {row["text"]: [names[label] for label in row["label"]] for row in rows}
    return dict(sorted(labels_by_text.items()))


EXPECTED_LABELS = {"a": ["x", "y z"], "b": [], "c": ["x"], "d": ["y z"], "e": ["x"]}


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ('text,label\na,"x,y z"\nb,\nc,x\nd, y z \ne,"x, ,x"\n', '  label_separator: ","\n'),
        ("text,label\na,x|y z\nb,\nc,x\nd,y z\ne,x|\n", '  label_separator: "|"\n'),
        ("text,label\na,\"['x', 'y z']\"\nb,[]\nc,['x']\nd,['y z']\ne,['x']\n", ""),
        ('text,label\na,"[""x"", ""y z""]"\nb,[]\nc,"[""x""]"\nd,"[""y z""]"\ne,"[""x""]"\n', ""),
        ("text,label\na,['x' 'y z']\nb,[]\nc,['x']\nd,['y z']\ne,['x']\n", ""),
        ("text,x,y z\na,1,1\nb,0,0\nc,1,0\nd,0.0,1.0\ne,True,false\n", "  label: [x, y z]\n"),
    ],
)
def test_several_labels_are_read_in_the_usual_layouts(table, text, more):
    assert labels_of(table(text, SEVERAL + more)) == EXPECTED_LABELS


def test_numbers_and_columns_keep_their_order(table):
    rows = 'text,label\na,"10,9"\nb,"9,100"\nc,9\nd,10\ne,9\n'
    splits = classification.load_splits(table(rows, SEVERAL + '  label_separator: ","\n'))
    assert splits["train"].features["label"].feature.names == ["9", "10", "100"]
    columns = "text,z,a\n" + "".join(f"t{n},{n % 2},1\n" for n in range(9))
    splits = classification.load_splits(
        table(columns, SEVERAL + "  label: [z, a]\n  label_names: {z: last, a: first}\n")
    )
    assert splits["train"].features["label"].feature.names == ["last", "first"]


@pytest.mark.parametrize(
    ("text", "more", "expected_error"),
    [
        ('text,label\na,"x,y"\nb,x\n', SEVERAL, "row 1 of the train split has 'x,y' as its label; it should be a list"),
        ('text,label\na,"x,y"\nb,x\n', SEVERAL, 'or set data.label_separator: ","'),
        ("text,label\na,[x y]\nb,['x']\n", SEVERAL, "row 1 of the train split has '[x y]' as its label"),
        ("text,x,y\na,1,2\nb,0,1\n", SEVERAL + "  label: [x, y]\n", "row 1 of the train split has '2' as its y"),
        ("text,label\na,x\nb,y\n", "  label: ''\n", "data.label: no column  in the train split; it has text, label"),
        ("text,x,y\na,1,0\nb,0,1\n", SEVERAL + "  label: [x, z]\n", "no column z in the train split"),
        ("text,x,y\na,1,0\nb,0,1\n", SEVERAL + "  label: [x, text]\n", "data.label: text is the text column as well"),
        ("text,x,y\na,1,\nb,0,1\n", SEVERAL + "  label: [x, y]\n", "1 of 2 rows of the train split have no value in x"),
    ],
)  # fmt: skip
def test_unsuitable_cells_are_reported_in_one_line(table, text, more, expected_error):
    message = error_of(table(text, more))
    assert expected_error in message and len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "expected_error"),
    [
        ("  label: [x, y]\n", "data.label: several columns are for problem_type: multi_label"),
        ("  label: [x]\n", "data.label: ['x'] is neither the name of a column nor several"),
        ("  label: [x, x]\n", "data.label: x is named twice"),
        ('  label_separator: ","\n', "data.label_separator: is for problem_type: multi_label"),
        (SEVERAL + '  label: [x, y]\n  label_separator: ","\n', "data.label_separator: is for one column of labels"),
        ("  missing_labels: keep\n", "data.missing_labels: 'keep' is not one of refuse, drop"),
    ],
)
def test_unsuitable_label_keys_are_refused(table, more, expected_error):
    with pytest.raises(UserError) as error_info:
        table("text,label\na,x\nb,y\n", more)
    assert expected_error in str(error_info.value)


BLANKS = "text,label\na,x\nb,y\n,\nc, \n" + "".join(f"t{n},{'xy'[n % 2]}\n" for n in range(8)) + "d,nan\n"


def test_rows_without_a_label_are_refused_or_dropped_and_counted(table):
    message = error_of(table(BLANKS))
    assert "data.label: 2 of 13 rows of the train split have no label, the first is row 3" in message
    assert message.endswith("data.missing_labels: drop leaves them out")
    recipe_with_drop = table(BLANKS, "  missing_labels: drop\n")
    splits = classification.load_splits(recipe_with_drop)
    assert sum(map(len, splits.values())) == 11 and splits["train"].features["label"].names == ["nan", "x", "y"]
    assert "2 of 13 train rows have no label and are left out, the first is row 3" in recipe_with_drop.findings.notes
    recipe_with_names = table(BLANKS, "  missing_labels: [nan]\n")
    splits = classification.load_splits(recipe_with_names)
    assert sum(map(len, splits.values())) == 10 and splits["train"].features["label"].names == ["x", "y"]
    assert "3 of 13 train rows have no label and are left out, the first is row 3" in recipe_with_names.findings.notes


def test_missing_numbers_and_columns_are_dropped_too(recipe, table):  # noqa: F811
    rows = [{"text": f"t{n}", "label": [0.5, None, 2.5][n % 3]} for n in range(9)]
    more = "  problem_type: regression\n"
    assert "3 of 9 rows of the train split have no label, the first is row 2" in error_of(
        recipe(more, train=rows, validation=rows[:1])
    )
    splits = classification.load_splits(recipe(more + "  missing_labels: drop\n", train=rows, validation=rows[:1]))
    assert splits["train"]["label"][:] == [0.5, 2.5] * 3
    columns = "text,x,y\na,1,\nb,0,1\nc,1,0\nd,1,1\n,,\n"
    assert set(labels_of(table(columns, SEVERAL + "  label: [x, y]\n  missing_labels: drop\n"))) == {"b", "c", "d"}


def test_integral_floats_are_classes_and_an_unlabeled_test_split_is_not_evaluated(recipe, tmp_path):  # noqa: F811
    rows = [{"text": f"t{n}", "label": [0.0, 1.0, None][n % 3]} for n in range(9)]
    blank = [{"text": "t", "label": None}] * 2
    splits = classification.load_splits(
        recipe("  missing_labels: drop\n", train=rows, validation=rows[:2], test=[*blank])
    )
    assert splits["train"].features["label"].names == ["0", "1"] and "test" not in splits
    assert isinstance(splits["train"], Dataset) and len(splits["train"]) == 6
