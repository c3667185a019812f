"""`toolkit evaluate` and `toolkit predict` on a finished run."""

from __future__ import annotations

import io
import json
import shutil

import pytest
from rich.console import Console
from test_train import recipe_file, run  # noqa: F401 - the same finished run serves both files

from toolkit.commands.predict import evaluate, load_run, predict
from toolkit.errors import UserError
from toolkit.tasks.classification.task import classify


def console() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_evaluating_a_run_gives_the_numbers_of_its_training(run, split):  # noqa: F811
    found = evaluate(run, console(), split)
    assert found == json.loads((run / "metrics.json").read_text())[split]
    saved = json.loads((run / "evaluation.json").read_text())[split]
    low, high = saved.pop("intervals")["accuracy"]
    assert saved == {**found, "texts": 15} and low <= found["accuracy"] <= high


def test_both_splits_stay_in_the_evaluation_file(run):  # noqa: F811
    evaluate(run, console(), "test")
    evaluate(run, console(), "validation")
    assert {"test", "validation"} <= set(json.loads((run / "evaluation.json").read_text()))


def test_predictions_are_labels_with_probabilities(run):  # noqa: F811
    out = console()
    found = predict(run, out, texts=["cat dog cow lion horse cat dog cow", "hammer saw axe drill file saw hammer axe"])
    assert [prediction.label for prediction in found] == ["animals", "tools"]
    assert all(1 / 3 < prediction.probability <= 1 for prediction in found)
    assert "animals" in out.file.getvalue() and "hammer saw" in out.file.getvalue()


def test_odd_texts_are_predicted_too_and_a_long_one_is_said_to_be_cut(run):  # noqa: F811
    texts = ["", "a" * 1000, "\ud800 lone surrogate", "[bold]no markup[/nothing]", "\x00\x1b[31m", "日本語 🙂"]
    out = console()
    found = predict(run, out, texts=texts)
    assert [prediction.is_truncated for prediction in found] == [False, True, False, False, False, False]
    assert "1 of 6 texts are longer than 64 tokens" in out.file.getvalue()
    assert "[bold]no markup[/nothing]" in out.file.getvalue()


def test_a_text_is_labelled_the_same_whatever_stands_beside_it(run):  # noqa: F811
    loaded = load_run(run)
    texts = ["cat dog cow", "saw axe file", "pear fig plum kiwi"] * 7  # more than a batch
    together = [prediction.label for prediction in classify(loaded, texts)]
    assert together == [classify(loaded, [text])[0].label for text in texts]


def test_an_unfinished_run_says_how_to_go_on(run, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "metrics.json").unlink()
    for command in (lambda: evaluate(folder, console()), lambda: predict(folder, console(), texts=["x"])):
        with pytest.raises(UserError, match=r"resume it: toolkit finetune .*recipe\.yaml, or .*: toolkit finish "):
            command()


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(UserError, match=r"holds no recipe\.yaml, so it is not a run folder"):
        evaluate(tmp_path, console())


def test_a_question_to_a_classifier_is_refused_with_what_would_be_right(run):  # noqa: F811
    with pytest.raises(UserError, match=r"run of text classification and needs texts: toolkit predict .* --text"):
        predict(run, console())
    with pytest.raises(UserError, match=r"run of text classification, which takes no question"):
        predict(run, console(), texts=["x"], question="who?")
