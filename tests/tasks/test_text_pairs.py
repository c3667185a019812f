"""Test `data.text: [question, passage]`: two texts are read as one, in training and in later predictions."""

from __future__ import annotations

import csv
import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from test_data import HEAD
from test_tables import read
from test_train import WORDS, recipe_file, train  # noqa: F401

from toolkit import cli
from toolkit.commands.label_file import label_file
from toolkit.commands.predict import predict
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification

PAIRS = [("what is a cat", "cats purr"), ("x", "日本語\nfig")]


@pytest.fixture(scope="module")
def run(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    """Return a classifier of two texts, trained for one step."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = [(word, f"of {word}s", label) for label, words in WORDS.items() for word in words]
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "passage", "label"), *rows])
    files = f"data.files={{train: {folder}/pairs.csv, validation: {folder}/pairs.csv}}"
    return train(recipe_file, folder / "run", files, "data.text=[question, passage]", "train.max_steps=1")


def make_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_texts_are_joined_in_predictions_as_in_training(run, tmp_path):
    recipe = load_recipe(run / "recipe.yaml")
    assert classification.load_splits(recipe)["train"]["text"][0] == "cat\nof cats"
    predictions = predict(run, make_console(), texts=PAIRS)
    assert [prediction.text for prediction in predictions] == ["what is a cat\ncats purr", "x\n日本語\nfig"]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *PAIRS, ("", "no question")])
    output = make_console()
    label_file(run, output, tmp_path / "a.csv", tmp_path / "b.jsonl", overwrite=False, text_pair_column="answer")
    rows = read(tmp_path / "b.jsonl")
    assert [row["predicted_label"] for row in rows] == [*(prediction.label for prediction in predictions), None]
    assert [row["probability"] for row in rows[:2]] == pytest.approx(
        [prediction.probability for prediction in predictions], abs=1e-5
    )
    assert "1 row has no text: 3" in output.file.getvalue()
    assert "A text is that of `question` and that of `passage`, with a line break" in (run / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "expected_error"),
    [
        (["--text", "a"], "--text-pair: missing; the run reads two texts, question and passage"),
        (
            ["--text", "a", "--text-pair", "b", "--text-pair", "c"],
            "--text-pair: 2 given for 1 --text; each text needs one",
        ),
    ],
)
def test_incomplete_pairs_are_reported_in_one_line(run, words, expected_error, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["predict", str(run), *words])
    assert exit_info.value.code == 2 and capsys.readouterr().err == f"error: {expected_error}\n"


def test_the_command_that_a_run_prints_works_unchanged(run, capsys):
    command = classification.DESCRIPTION.command(run, load_recipe(run / "recipe.yaml"))
    assert command.split(" ", 3)[3] in (run / "README.md").read_text()  # the folder was moved
    with pytest.raises(SystemExit) as exit_info:
        cli.main(shlex.split(command)[1:])
    assert not exit_info.value.code and "probability" in capsys.readouterr().out


def test_a_pair_for_a_run_of_one_text_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: cldr_languages\n")
    recipe = load_recipe(tmp_path / "x.yaml")
    from toolkit.tasks.classification.pairs import model_texts

    with pytest.raises(UserError, match="the run reads one text, text; remove it"):
        model_texts(recipe, [("a", "b")])


@pytest.mark.parametrize(
    ("lines", "expected_error"),
    [
        ("text: [a, b, c]", "x.yaml:7: data.text: ['a', 'b', 'c'] is neither the name of a column nor two of them"),
        ("text: [a, a]", "x.yaml:7: data.text: a is named twice"),
        ("text: [a, label]", "data.label: label is the text column as well"),
        ("text: [text, other]", "x.yaml:7: data.text: no column other in the train split"),
    ],
)
def test_columns_that_are_not_a_pair_are_refused_at_their_line(tmp_path, lines, expected_error):
    (tmp_path / "t.csv").write_text("text,label,a\nx,0,y\nz,1,u\n")
    files = "  dataset: csv\n  files: {train: t.csv, validation: t.csv}\n"
    (tmp_path / "x.yaml").write_text(HEAD + f"  {lines}\n" + files)
    with pytest.raises(UserError) as error_info:
        classification.load_splits(load_recipe(tmp_path / "x.yaml"))
    assert expected_error in str(error_info.value) and len(str(error_info.value).splitlines()) == 1


def test_a_language_model_reads_one_column(tmp_path):
    (tmp_path / "x.yaml").write_text("task: language_modeling\n" + HEAD + "  dataset: python_docs\n  text: [a, b]\n")
    with pytest.raises(UserError, match=r"x\.yaml:9: data\.text: two columns are for task classification"):
        load_recipe(tmp_path / "x.yaml")
