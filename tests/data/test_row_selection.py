"""Test data.filter and data.split_column, which select rows and their splits by the values of columns."""

from __future__ import annotations

import json

import pytest
from test_data import HEAD, cache, error_of, recipe  # noqa: F401

from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification
from toolkit.tasks.language_modeling import task as language_modeling

PARTS = ["train", "dev", "train", "test", "other"]
ROWS = [
    {
        "text": f"text {n}",
        "label": "ab"[n // 5 % 2],
        "part": PARTS[n % 5],
        "n": n % 2,
        "good": n > 3,
        "at": {"x": n % 3},
    }
    for n in range(20)
]
SPLITS = "  split_column: part\n  splits: {validation: dev}\n"


def texts(loaded_recipe) -> dict[str, list[int]]:
    splits = classification.load_splits(loaded_recipe)
    return {split_name: [int(text.split()[1]) for text in rows["text"]] for split_name, rows in splits.items()}


def test_a_column_selects_the_split_of_each_row(recipe):  # noqa: F811
    loaded_recipe = recipe(SPLITS, train=ROWS)
    assert texts(loaded_recipe) == {
        "train": [0, 2, 5, 7, 10, 12, 15, 17],
        "validation": [1, 6, 11, 16],
        "test": [3, 8, 13, 18],
    }
    assert "4 of 20 rows are of no split that is used (part) and are left out" in loaded_recipe.findings.notes
    without = texts(recipe("  split_column: part\n  splits: {validation: dev, test: null}\n", train=ROWS))
    assert list(without) == ["train", "validation"]
    held_out = texts(recipe("  split_column: part\n  validation_fraction: 0.25\n", train=ROWS))
    assert {name: len(rows) for name, rows in held_out.items()} == {"train": 6, "validation": 2, "test": 4}


@pytest.mark.parametrize(
    ("filter_text", "expected_rows"),
    [
        ("{n: 1}", [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]),
        ('{n: "1", at.x: [0, 2]}', [3, 5, 9, 11, 15, 17]),
        ("{good: false}", [0, 1, 2, 3]),
        ("{part: [dev, test], n: 0}", [6, 8, 16, 18]),
    ],
)
def test_a_filter_keeps_the_rows_with_these_values(recipe, filter_text, expected_rows):  # noqa: F811
    rows = [{**row, "label": "ab"[n // 2 % 2]} for n, row in enumerate(ROWS)]
    loaded_recipe = recipe(f"  filter: {filter_text}\n", train=rows, validation=rows)
    assert texts(loaded_recipe) == {"train": expected_rows, "validation": expected_rows}
    assert f"data.filter keeps {len(expected_rows)} of 20 train rows" in loaded_recipe.findings.notes


def test_filters_select_rows_for_a_language_model_too(tmp_path):
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    head = HEAD.replace("config:", "config:\n    is_decoder: true")
    files = "  dataset: json\n  files: {train: t.jsonl}\n" + SPLITS
    (tmp_path / "x.yaml").write_text("task: language_modeling\n" + head + files)
    row_sets = [
        language_modeling.load_splits(load_recipe(tmp_path / "x.yaml", more))["train"]["text"][:]
        for more in ([], ["data.filter={n: 0}"], ["data.filter={n: 1}"])
    ]
    assert sorted(row_sets[1] + row_sets[2]) == sorted(row_sets[0]) and row_sets[1] and row_sets[2]


@pytest.mark.parametrize(
    ("more", "expected_error"),
    [
        (
            "  filter: {m: 1}\n",
            "data.filter.m: no column m in the train split; it has text, label, part, n, good, at.x",
        ),
        (
            "  filter: {part: none}\n",
            "data.filter.part: no row of the train split has this value; there are train, dev",
        ),
        ("  filter: {part: dev, text: text 0}\n", "data.filter: no row of the train split has all of these values"),
        ("  filter: {at: 1}\n", "data.filter.at: the column at of the train split holds {'x': 0}"),
        ("  split_column: parts\n", "data.split_column: no column parts in the train split"),
        ("  split_column: label\n", "data.split_column: the column label has no row of the split train; it has a, b"),
        (
            "  split_column: part\n  splits: {validation: val}\n",
            "data.splits.validation: the column part has no row of",
        ),
    ],
)
def test_a_selection_without_rows_is_reported_in_one_line(recipe, more, expected_error):  # noqa: F811
    message = error_of(recipe(more, train=ROWS))
    assert expected_error in message and len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "expected_error"),
    [
        ("filter: 5", "x.yaml:9: data.filter: 5 names no column; write {column: value}"),
        ("filter: {a: {b: 1}}", "x.yaml:9: data.filter: {'b': 1} is no value for a to have"),
        ("filter: {a: []}", "x.yaml:9: data.filter: [] is no value for a to have"),
        ("split_column: part", "x.yaml:8: data.files.validation: data.split_column says which rows"),
        ("splits: {train: a}", "x.yaml:9: data.splits: is for folders and hub data sets"),
    ],
)
def test_unsuitable_selection_keys_are_refused_at_their_line(tmp_path, lines, expected_error):
    files = "  dataset: csv\n  files: {train: t.csv, validation: t.csv}\n"
    (tmp_path / "x.yaml").write_text(HEAD + files + f"  {lines}\n")
    with pytest.raises(UserError) as error_info:
        load_recipe(tmp_path / "x.yaml")
    assert expected_error in str(error_info.value) and len(str(error_info.value).splitlines()) == 1
