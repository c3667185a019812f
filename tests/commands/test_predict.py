"""Test `toolkit evaluate` and `toolkit predict` on a finished run."""

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


def make_console() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.mark.parametrize("split_name", ["test", "validation"])
def test_evaluating_a_run_reproduces_the_metrics_of_training(run, split_name):  # noqa: F811
    metrics = evaluate(run, make_console(), split_name)
    assert metrics == json.loads((run / "metrics.json").read_text())[split_name]
    saved_results = json.loads((run / "evaluation.json").read_text())[split_name]
    low, high = saved_results.pop("intervals")["accuracy"]
    assert saved_results == {**metrics, "texts": 15} and low <= metrics["accuracy"] <= high


def test_both_splits_stay_in_the_evaluation_file(run):  # noqa: F811
    evaluate(run, make_console(), "test")
    evaluate(run, make_console(), "validation")
    assert {"test", "validation"} <= set(json.loads((run / "evaluation.json").read_text()))


def test_predictions_are_labels_with_probabilities(run):  # noqa: F811
    out = make_console()
    predictions = predict(
        run, out, texts=["cat dog cow lion horse cat dog cow", "hammer saw axe drill file saw hammer axe"]
    )
    assert [prediction.label for prediction in predictions] == ["animals", "tools"]
    assert all(1 / 3 < prediction.probability <= 1 for prediction in predictions)
    assert "animals" in out.file.getvalue() and "hammer saw" in out.file.getvalue()


def test_odd_texts_are_predicted_too_and_a_cut_text_is_marked(run):  # noqa: F811
    texts = ["", "a" * 1000, "\ud800 lone surrogate", "[bold]no markup[/nothing]", "\x00\x1b[31m", "日本語 🙂"]
    out = make_console()
    predictions = predict(run, out, texts=texts)
    assert [prediction.is_truncated for prediction in predictions] == [False, True, False, False, False, False]
    assert "1 of 6 texts are longer than 64 tokens" in out.file.getvalue()
    assert "[bold]no markup[/nothing]" in out.file.getvalue()


def test_a_prediction_does_not_depend_on_other_texts(run):  # noqa: F811
    loaded_run = load_run(run)
    texts = ["cat dog cow", "saw axe file", "pear fig plum kiwi"] * 7  # more than a batch
    batch_labels = [prediction.label for prediction in classify(loaded_run, texts)]
    assert batch_labels == [classify(loaded_run, [text])[0].label for text in texts]


def test_an_unfinished_run_is_refused_with_the_command_to_resume(run, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "metrics.json").unlink()
    for command in (lambda: evaluate(folder, make_console()), lambda: predict(folder, make_console(), texts=["x"])):
        with pytest.raises(UserError, match=r"resume it: toolkit finetune .*recipe\.yaml, or .*: toolkit finish "):
            command()


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no recipe\.yaml, so it is not a run folder"):
        evaluate(tmp_path, make_console())


def test_a_question_to_a_classifier_is_refused_with_the_correct_option(run):  # noqa: F811
    with pytest.raises(UserError, match=r"run of text classification and needs texts: toolkit predict .* --text"):
        predict(run, make_console())
    with pytest.raises(UserError, match=r"run of text classification, which takes no question"):
        predict(run, make_console(), texts=["x"], question="who?")
