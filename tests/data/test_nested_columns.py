"""Test nested columns, which a recipe names with dots, in training data and in files to label."""

from __future__ import annotations

import json

import datasets
import pytest
from test_data import HEAD, cache, error_of, recipe  # noqa: F401

from toolkit.errors import UserError
from toolkit.files import tables
from toolkit.files.nested_columns import MISSING
from toolkit.files.tables import read_table
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification
from toolkit.tasks.language_modeling import task as language_modeling

ROWS = [{"doc": {"body": {"en": f"text {n}"}, "kind": ["a", "b"][n % 2], "tags": ["x"]}, "n": n} for n in range(6)]
COLUMNS = "  text: doc.body.en\n  label: doc.kind\n"


def test_nested_columns_are_texts_and_labels(recipe):  # noqa: F811
    splits = classification.load_splits(recipe(COLUMNS, train=ROWS, validation=ROWS))
    assert splits["train"][1] == {"text": "text 1", "label": 1}


def test_a_column_with_a_dot_in_its_name_has_priority(recipe):  # noqa: F811
    rows = [{**row, "doc.body.en": "itself"} for row in ROWS]
    assert classification.load_splits(recipe(COLUMNS, train=rows, validation=rows))["train"]["text"][0] == "itself"


def test_parquet_too_and_for_language_models(tmp_path):
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "t.parquet")
    files = "  dataset: parquet\n  files: {train: t.parquet, validation: t.parquet}\n  text: doc.body.en\n"
    (tmp_path / "x.yaml").write_text(
        "task: language_modeling\n" + HEAD.replace("config:", "config:\n    is_decoder: true") + files
    )
    splits = language_modeling.load_splits(load_recipe(tmp_path / "x.yaml"))
    assert splits["train"][0]["text"] == "text 0"


def test_a_missing_column_is_refused_with_the_existing_columns(recipe):  # noqa: F811
    loaded_recipe = recipe("  text: doc.text\n  label: n\n", train=ROWS, validation=ROWS)
    existing_columns = "doc.body.en, doc.kind, doc.tags, n"
    assert (
        error_of(loaded_recipe) == f":11: data.text: no column doc.text in the train split; it has {existing_columns}"
    )


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_nested_columns_of_a_file_to_label_are_read(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_ROWS", 2)
    path = tmp_path / f"t.{ending}"
    if ending == "jsonl":
        rows = [{"n": 1}, {"n": 2, "doc": None}, *ROWS]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        datasets.Dataset.from_list(ROWS).to_parquet(path)
    values = [value for rows in read_table(path, ["doc.body.en"]).chunks() for value in rows.values("doc.body.en")]
    assert values == [*([MISSING] * 2 if ending == "jsonl" else []), *(row["doc"]["body"]["en"] for row in ROWS)]
    with pytest.raises(UserError, match=r"has no column doc\.text; it has"):
        read_table(path, ["doc.text"])
    with pytest.raises(UserError, match=r"has in row \d \['x'\] for its doc.tags, which is no text"):
        read_table(path, ["doc.tags"])
