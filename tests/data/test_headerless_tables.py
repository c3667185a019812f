"""Tables without a header, or with quotes of another kind: detected by `recipe new`, kept in the recipe, and read so by
runs and by `predict --input`."""

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
    given = {"dataset": "csv", "files": {"train": "t.tsv"}, "max_length": 32, **data}
    (folder / "x.yaml").write_text(f"train: {{epochs: 1, learning_rate: 1e-3}}\ndata: {json.dumps(given)}\n")
    return load_recipe(folder / "x.yaml")


def test_a_new_recipe_names_the_columns_of_a_table_without_a_header(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sms.tsv").write_text(HEADERLESS)
    made = new_recipe(Path("sms.tsv"))
    assert made.assumed[0] == (
        "the first row (spam, a 0, and more) is data, so there is no header: the columns are called column1, column2 "
        "(--columns names them, --header makes it the header)"
    )
    recipe = load_recipe(made.paths[0])
    assert (recipe.data.columns, recipe.data.text, recipe.data.label) == (["column1", "column2"], "column2", "column1")
    assert load_splits(recipe, {})["train"][0] == {"column1": "spam", "column2": "a 0, and more"}
    made = new_recipe(Path("sms.tsv"), Path("named.yaml"), layout={"columns": "label,text"})
    assert "first row" not in made.assumed[0]
    recipe = load_recipe(made.paths[0])
    assert (recipe.data.columns, recipe.data.text, recipe.data.label) == (["label", "text"], "text", "label")
    assert inspect_data(Path("sms.tsv"), header=True).rows.column_names == ["spam", "a 0, and more"]
    Path("t.csv").write_text("text,label\nx,a\ny,b\n")
    assert inspect_data(Path("t.csv")).columns is None
    assert inspect_data(Path("t.csv"), header=False).rows.column_names == ["column1", "column2"]


@pytest.mark.parametrize(
    ("rows", "expected"),
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
def test_a_header_is_told_from_a_row(rows, expected):
    assert lacks_header(rows) is expected


def test_a_labelled_file_has_a_header_where_its_first_row_names_the_texts(tmp_path):
    recipe = recipe_of(tmp_path, columns=["kind", "body"], text="body", label="kind")
    for content, expected in {"a\tx\nb\ty\n": ["x", "y"], "body\tkind\nx\ta\n": ["x"], "body\nx\n": ["x"]}.items():
        (tmp_path / "p.tsv").write_text(content)
        _, delimiter, layout = find_source_layout(recipe, tmp_path / "p.tsv", ["body"])
        (rows,) = read_table(tmp_path / "p.tsv", ["body"], delimiter, layout=layout).chunks()
        assert rows.values("body") == expected
    (tmp_path / "p.tsv").write_text("x\ny\n")
    _, delimiter, layout = find_source_layout(recipe, tmp_path / "p.tsv", ["body"])
    with pytest.raises(UserError, match=r"p.tsv:1: row 1 has 1 field and 2 columns are named; name one for each"):
        read_table(tmp_path / "p.tsv", ["body"], delimiter, layout=layout)
    _, delimiter, layout = find_source_layout(recipe, tmp_path / "p.tsv", columns="body")
    assert read_table(tmp_path / "p.tsv", ["body"], delimiter, layout=layout).size == 2


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"columns": ["a", "a"]}, "data.columns: has a name twice or an empty one; name each column once"),
        ({"dataset": "parquet", "columns": ["a"]}, "data.columns: is for dataset: csv, xlsx or json, not for parquet"),
        ({"dataset": "json", "quote": "none"}, "data.quote: is for dataset: csv, not for json; remove it"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path, data, expected):
    with pytest.raises(UserError, match=rf"x.yaml:2: {expected}"):
        recipe_of(tmp_path, **data)


def test_quotes_that_are_text_are_said_to_be_and_read(tmp_path):
    (tmp_path / "t.csv").write_text('text,label\n"b" c,b\n"open,a\n')
    with pytest.raises(UserError, match=r"t.csv:3: row 2 opens a quote.*if quotes are text here, set data.quote: none"):
        inspect_data(tmp_path / "t.csv")
    found = inspect_data(tmp_path / "t.csv", {"quote": "none"})
    assert found.quote == "none" and list(found.rows["text"]) == ['"b" c', '"open']
    recipe = recipe_of(tmp_path, files={"train": "t.csv"}, quote="none")
    assert list(load_splits(recipe, {})["train"]["text"]) == ['"b" c', '"open']
    _, delimiter, layout = find_source_layout(recipe, tmp_path / "t.csv")
    assert read_table(tmp_path / "t.csv", ["text"], delimiter, layout=layout).size == 2


def test_a_new_recipe_takes_the_splits_of_a_file_that_has_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [list(row) for row in ROWS]
    Path("full.json").write_text(
        json.dumps({"train": rows[:30], "val": rows[30:36], "oos": rows[:2], "test": rows[36:]})
    )
    made = new_recipe(Path("full.json"), layout={"columns": "text,label"})
    assert made.assumed[0] == (
        "the column split divides the rows (train: train, validation: val, test: test); not used: oos"
    )
    assert "30 rows; texts in the column text" in made.assumed[1] and "test file" not in " ".join(made.assumed)
    recipe = load_recipe(made.paths[0])
    assert recipe.data.validation_fraction is None and recipe.data.columns == ["text", "label"]
    found = load_splits(recipe, {})
    assert {split: len(rows) for split, rows in found.items()} == {"train": 30, "validation": 6, "test": 4}
    assert found["test"][3]["text"] == ROWS[-1][0]
    found = inspect_data(Path("full.json"))
    assert found.columns == ["column1", "column2"] and found.rows.column_names == found.columns
    assert found.notes[0] == "rows are lists: their columns are called column1, column2 (--columns names them)"


def test_a_column_called_split_that_names_no_splits_stays_one(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"spam": [{"text": "x"}] * 2, "ham": [{"text": "y"}] * 2}))
    found = inspect_data(tmp_path / "t.json")
    assert found.splits == {} and found.rows.column_names == ["split", "text"] and len(found.rows) == 4


def test_a_line_without_a_text_behind_its_label_is_named(tmp_path):
    path = tmp_path / "t.label"
    path.write_text("A:x y z\n" * 60 + "B:y\n")
    found = r"t.label:61: row 61 has 1 field and 2 columns are named; write them all$"
    with pytest.raises(UserError, match=found):
        inspect_data(path)
    recipe = recipe_of(tmp_path, files={"train": str(path)}, delimiter=" ", columns=["label", "text"])
    with pytest.raises(UserError, match=found):
        load_splits(recipe, {})
    _, delimiter, layout = find_source_layout(recipe, path, ["text"])
    with pytest.raises(UserError, match=found):
        read_table(path, ["text"], delimiter, layout=layout)


def test_the_layout_may_be_said_on_the_command_line(tmp_path, monkeypatch, command_line):
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
