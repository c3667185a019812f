"""Test tables without a header or with other quotes.

`recipe new` detects the layout and writes it into the recipe; runs and `predict --input` use it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.commands.recipe_new.look import inspect_data
from toolkit.commands.recipe_new.recipe_new import new_recipe
from toolkit.data.load import load_splits
from toolkit.data.source_layout import find_source_layout
from toolkit.errors import UserError
from toolkit.files.csv_rows import lacks_header
from toolkit.files.tables import read_table
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe

ROWS = [(f"{word} {index}, and more", "ham" if index % 2 else "spam") for index, word in enumerate("abcdefgh" * 5)]
HEADERLESS = "".join(f"{label}\t{text}\n" for text, label in ROWS)


def recipe_of(folder: Path, **data: Any) -> Recipe:
    data_keys = {"dataset": "csv", "files": {"train": "t.tsv"}, "max_length": 32, **data}
    (folder / "x.yaml").write_text(f"train: {{epochs: 1, learning_rate: 1e-3}}\ndata: {json.dumps(data_keys)}\n")
    return load_recipe(folder / "x.yaml")


def test_a_new_recipe_names_the_columns_of_a_table_without_a_header(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sms.tsv").write_text(HEADERLESS)
    new_files = new_recipe(Path("sms.tsv"))
    assert new_files.assumed[0] == (
        "the first row (spam, a 0, and more) is data, so there is no header: the columns are called column1, column2 "
        "(--columns names them, --header makes it the header)"
    )
    recipe = load_recipe(new_files.paths[0])
    assert (recipe.data.columns, recipe.data.text, recipe.data.label) == (["column1", "column2"], "column2", "column1")
    assert load_splits(recipe, {})["train"][0] == {"column1": "spam", "column2": "a 0, and more"}
    new_files = new_recipe(Path("sms.tsv"), Path("named.yaml"), layout={"columns": "label,text"})
    assert "first row" not in new_files.assumed[0]
    recipe = load_recipe(new_files.paths[0])
    assert (recipe.data.columns, recipe.data.text, recipe.data.label) == (["label", "text"], "text", "label")
    assert inspect_data(Path("sms.tsv"), header=True).rows.column_names == ["spam", "a 0, and more"]
    Path("t.csv").write_text("text,label\nx,a\ny,b\n")
    assert inspect_data(Path("t.csv")).columns is None
    assert inspect_data(Path("t.csv"), header=False).rows.column_names == ["column1", "column2"]


@pytest.mark.parametrize(
    ("rows", "expected_verdict"),
    [
        ([["a", "x y"], ["b", "z"], ["a", "w"], ["a", "v"], ["b", "u"]], True),
        ([["one of " * 6, "a"], ["two of " * 7, "b"]], True),
        ([["3", "x"], ["2", "y"], ["3", "z"], ["2", "w"], ["1", "v"], ["3", "u"], ["1", "t"]], True),
        ([["text", "label"], ["x", "a"], ["y", "a"]], False),
        ([["text", "label"], ["text", "1"], ["text", "2"]], False),
        ([["0", "1"], ["x", "1"], ["y", "1"]], False),
        ([["", "0", "1"], ["0", "x", "1"], ["1", "y", "1"]], False),
        ([["country", "2019"], ["x", "1"], ["y", "1"]], False),
        ([["What do you like most about it?", "x"], ["the long walks at night along the sea", "a"]], False),
        ([["label", "text"], ["label", "text"], ["a", "x"], ["a", "y"], ["a", "z"]], False),
        ([["a"], ["a"], ["a"]], False),
        (
            [
                ["comments", "insult", "bias", "rude"],
                *[["x y z", "yes", "none", "rude"], ["w v", "no", "none", "mild"]] * 3,
            ],
            False,
        ),
        ([["tweet", "hate"], *[[f"so it is {number}", ["hate", "none"][number % 2]] for number in range(9)]], False),
        ([["so it is", "hate"], *[[f"so it is {number}", ["hate", "none"][number % 2]] for number in range(9)]], True),
        ([["a b", "x", "1"], *[["c d", "x", "1"], ["e f", "y", "2"]] * 2], True),
    ],
)
def test_a_header_is_distinguished_from_a_row(rows, expected_verdict):
    assert lacks_header(rows) is expected_verdict


def test_a_labeled_file_has_a_header_if_its_first_row_names_the_texts(tmp_path):
    recipe = recipe_of(tmp_path, columns=["kind", "body"], text="body", label="kind")
    for content, expected_texts in {
        "a\tx\nb\ty\n": ["x", "y"],
        "body\tkind\nx\ta\n": ["x"],
        "body\nx\n": ["x"],
    }.items():
        (tmp_path / "p.tsv").write_text(content)
        _, delimiter, layout = find_source_layout(recipe, tmp_path / "p.tsv", ["body"])
        (rows,) = read_table(tmp_path / "p.tsv", ["body"], delimiter, layout=layout).chunks()
        assert rows.values("body") == expected_texts
    (tmp_path / "p.tsv").write_text("x\ny\n")
    _, delimiter, layout = find_source_layout(recipe, tmp_path / "p.tsv", ["body"])
    with pytest.raises(UserError, match=r"p.tsv:1: row 1 has 1 field and 2 columns are named; name one for each"):
        read_table(tmp_path / "p.tsv", ["body"], delimiter, layout=layout)
    _, delimiter, layout = find_source_layout(recipe, tmp_path / "p.tsv", columns="body")
    assert read_table(tmp_path / "p.tsv", ["body"], delimiter, layout=layout).size == 2


@pytest.mark.parametrize(
    ("data", "expected_error"),
    [
        ({"columns": ["a", "a"]}, "data.columns: has a name twice or an empty one; name each column once"),
        ({"dataset": "parquet", "columns": ["a"]}, "data.columns: is for dataset: csv, xlsx or json, not for parquet"),
        ({"dataset": "json", "quote": "none"}, "data.quote: is for dataset: csv, not for json; remove it"),
    ],
)
def test_an_impossible_layout_is_refused(tmp_path, data, expected_error):
    with pytest.raises(UserError, match=rf"x.yaml:2: {expected_error}"):
        recipe_of(tmp_path, **data)


def test_quotes_can_be_read_as_text(tmp_path):
    (tmp_path / "t.csv").write_text('text,label\n"b" c,b\n"open,a\n')
    with pytest.raises(UserError, match=r"t.csv:3: row 2 opens a quote.*if quotes are text here, set data.quote: none"):
        inspect_data(tmp_path / "t.csv")
    data_files = inspect_data(tmp_path / "t.csv", {"quote": "none"})
    assert data_files.quote == "none" and list(data_files.rows["text"]) == ['"b" c', '"open']
    recipe = recipe_of(tmp_path, files={"train": "t.csv"}, quote="none")
    assert list(load_splits(recipe, {})["train"]["text"]) == ['"b" c', '"open']
    _, delimiter, layout = find_source_layout(recipe, tmp_path / "t.csv")
    assert read_table(tmp_path / "t.csv", ["text"], delimiter, layout=layout).size == 2


def test_a_new_recipe_uses_the_splits_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [list(row) for row in ROWS]
    Path("full.json").write_text(
        json.dumps({"train": rows[:30], "val": rows[30:36], "oos": rows[:2], "test": rows[36:]})
    )
    new_files = new_recipe(Path("full.json"), layout={"columns": "text,label"})
    assert new_files.assumed[0] == (
        "the column split divides the rows (train: train, validation: val, test: test); not used: oos"
    )
    assert "30 rows; texts in the column text" in new_files.assumed[1] and "test file" not in " ".join(
        new_files.assumed
    )
    recipe = load_recipe(new_files.paths[0])
    assert recipe.data.validation_fraction is None and recipe.data.columns == ["text", "label"]
    splits = load_splits(recipe, {})
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 30, "validation": 6, "test": 4}
    assert splits["test"][3]["text"] == ROWS[-1][0]
    data_files = inspect_data(Path("full.json"))
    assert data_files.columns == ["column1", "column2"] and data_files.rows.column_names == data_files.columns
    assert data_files.notes[0] == "rows are lists: their columns are called column1, column2 (--columns names them)"


def test_a_column_named_split_without_split_names_is_a_normal_column(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"spam": [{"text": "x"}] * 2, "ham": [{"text": "y"}] * 2}))
    data_files = inspect_data(tmp_path / "t.json")
    assert data_files.splits == {} and data_files.rows.column_names == ["split", "text"] and len(data_files.rows) == 4


def test_a_line_without_a_text_behind_its_label_is_named(tmp_path):
    path = tmp_path / "t.label"
    path.write_text("A:x y z\n" * 60 + "B:y\n")
    expected_error = r"t.label:61: row 61 has 1 field and 2 columns are named; write them all$"
    with pytest.raises(UserError, match=expected_error):
        inspect_data(path)
    recipe = recipe_of(tmp_path, files={"train": str(path)}, delimiter=" ", columns=["label", "text"])
    with pytest.raises(UserError, match=expected_error):
        load_splits(recipe, {})
    _, delimiter, layout = find_source_layout(recipe, path, ["text"])
    with pytest.raises(UserError, match=expected_error):
        read_table(path, ["text"], delimiter, layout=layout)


def test_the_layout_can_be_set_on_the_command_line(tmp_path, monkeypatch, command_line):
    monkeypatch.chdir(tmp_path)
    Path("sms.txt").write_bytes("".join(f"{label};{text} é\n" for text, label in ROWS).encode("cp1252"))
    options = ["--columns", "label,text", "--delimiter", ";", "--quote", "none", "--encoding", "latin-1"]
    status, _, errors = command_line("recipe", "new", "sms.txt", *options)
    assert status == 0, errors
    data = load_recipe(Path("sms.yaml")).data
    assert (data.columns, data.delimiter, data.quote, data.encoding) == (["label", "text"], ";", "none", "latin-1")
    status, _, errors = command_line("recipe", "new", "sms.txt", "-o", "b.yaml", *options, "--header")
    assert status == 2 and "--columns: names the columns of a table without a header; remove --header" in errors
    options = ["-o", "b.yaml", "--no-header", "--task", "language_modeling"]
    status, _, errors = command_line("recipe", "new", "sms.txt", *options)
    assert status == 2 and "--header: is for csv, not for sms.txt; remove it" in errors and not Path("b.yaml").exists()
