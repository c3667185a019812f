"""Test data.long_texts: a text longer than the model is read in windows, whose logits are averaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from test_data import cache  # noqa: F401
from test_problem_types import KINDS, make_console
from test_tables import read, write
from test_train import RECIPE, WORDS, train
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from toolkit.commands.export.export import export_run
from toolkit.commands.label_file import label_file
from toolkit.commands.predict import evaluate, load_run, predict
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.predictions import read_predictions
from toolkit.tasks.classification.calibration import probabilities
from toolkit.tasks.classification.task import classify
from toolkit.tasks.classification.windows import mean_of_texts, split_evenly

#: Maximum bytes of a window, and words of the longest text.
LONGEST, MOST_WORDS = 16, 40


def rows(problem: str, count: int) -> list[dict]:
    draw = np.random.default_rng(3)
    examples = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        size = int(draw.integers(1, MOST_WORDS))
        text = " ".join(str(draw.choice(WORDS[kind])) for _ in range(size))
        label = {"single_label": kind, "multi_label": [kind], "regression": KINDS.index(kind) / 2}[problem]
        examples.append({"text": text, "label": label})
    return examples


@pytest.fixture(scope="module", params=["single_label", "multi_label", "regression"])
def run(request, tmp_path_factory) -> Path:
    """Return a run of two steps on texts of up to 40 words, in windows of 16 bytes."""
    folder = tmp_path_factory.mktemp(request.param)
    for split_name, count in (("train", 32), ("validation", 9)):
        write(folder / f"{split_name}.jsonl", rows(request.param, count))
    files = {split_name: str(folder / f"{split_name}.jsonl") for split_name in ("train", "validation")}
    data = {"dataset": "json", "files": files, "max_length": LONGEST, "problem_type": request.param}
    model = {"config": {**RECIPE["model"]["config"], "axial_pos_shape": [4, 4]}}
    recipe_content = {**RECIPE, "model": model, "data": {**data, "long_texts": "windows"}}
    recipe_content["train"] = {**RECIPE["train"], "max_steps": 2, "eval_steps": 1}
    (folder / "x.yaml").write_text(yaml.safe_dump(recipe_content))
    return train(folder / "x.yaml", folder / "run")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 33, 100])
def test_windows_are_few_equal_in_size_and_cover_the_text(size):
    windows = split_evenly(range(size), LONGEST)
    assert [token for window in windows for token in window] == list(range(size))
    assert len(windows) == max(1, -(-size // LONGEST))
    assert max(map(len, windows)) <= LONGEST and max(map(len, windows)) - min(map(len, windows)) <= 1


def test_a_text_s_probabilities_are_the_normalized_geometric_mean_of_its_windows():
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    text_probabilities = probabilities(mean_of_texts(logits, np.array([0, 1, 1, 1, 2, 2])))
    for text, windows in enumerate(([0], [1, 2, 3], [4, 5])):
        means = np.exp(np.log(probabilities(logits[windows])).mean(axis=0))
        np.testing.assert_allclose(text_probabilities[text], means / means.sum(), rtol=1e-6)
    assert mean_of_texts(logits, np.arange(6)) is logits


def test_every_text_is_read_completely_and_predicted_equally_by_all_commands(run, tmp_path):
    problem = run.parent.name.rstrip("0123456789")
    examples, saved_rows = rows(problem, 9), list(read_predictions(run / "predictions-validation.csv"))
    assert [int(row["tokens"]) for row in saved_rows] == [len(row["text"]) for row in examples]
    assert max(len(row["text"]) for row in examples) > 5 * LONGEST
    label_file(run, make_console(), write(tmp_path / "a.jsonl", examples), tmp_path / "b.jsonl", overwrite=False)
    for row, saved_row in zip(read(tmp_path / "b.jsonl"), saved_rows, strict=True):
        for name in saved_row.keys() & {"predicted_label", "predicted_labels"}:
            assert row[name] == saved_row[name]
        for name in (name for name in saved_row if name.startswith(("probability", "predicted_value"))):
            assert float(saved_row[name]) == pytest.approx(row[name], abs=1e-5)
    result = json.loads((run / "metrics.json").read_text())
    assert evaluate(run, make_console(), "validation") == pytest.approx(result["validation"], abs=1e-5)
    if problem == "single_label":
        is_correct = [row["predicted_label"] == row["label"] for row in saved_rows]
        assert result["validation"]["accuracy"] == pytest.approx(np.mean(is_correct))
    counts = {"train": 32, "validation": 9}
    windows = {
        split_name: sum(-(-len(row["text"]) // LONGEST) for row in rows(problem, count))
        for split_name, count in counts.items()
    }
    assert result["examples"] == windows
    assert f"{windows['train']} train, {windows['validation']} validation windows" in (run / "README.md").read_text()
    assert "windows that are at most as long" in (run / "report.html").read_text()
    assert "cut" not in result["data"]["train"] or result["data"]["train"]["cut"] == 0


def test_other_texts_do_not_matter_and_a_cut_text_is_predicted_differently(run, tmp_path):
    text = rows("single_label", 9)[8]["text"]
    (single_prediction,) = predict(run, make_console(), texts=[text])
    batch_predictions = predict(run, make_console(), texts=["a", text, text[:LONGEST], "cow " * 50])
    assert batch_predictions[1].probabilities == pytest.approx(single_prediction.probabilities, abs=1e-6)
    assert batch_predictions[2].probabilities != pytest.approx(single_prediction.probabilities, abs=1e-6)
    assert not any(prediction.is_truncated for prediction in batch_predictions)
    assert classify(load_run(run), []) == []


def test_an_export_describes_the_windows_of_long_texts(run, tmp_path):
    padding = json.loads(
        (export_run(run, "hf", tmp_path / "hf", make_console(), overwrite=False) / "export.json").read_text()
    )["padding"]
    assert padding["mean_of_windows_of"] == LONGEST and "text_cut_to" not in padding


def test_the_card_s_code_gives_the_run_s_logits_in_transformers(run):
    code = [part.split("```")[0] for part in (run / "README.md").read_text().split("```python\n")[1:]]
    (windows,) = (part for part in code if "array_split" in part)
    scope = {
        "tokenizer": AutoTokenizer.from_pretrained(run / "model"),
        "model": AutoModelForSequenceClassification.from_pretrained(run / "model").eval(),
        "text": rows("single_label", 9)[8]["text"],
    }
    with torch.no_grad():
        exec(windows, scope)
    result = json.loads((run / "metrics.json").read_text()).get("calibration", {})
    problem = run.parent.name.rstrip("0123456789")
    (prediction,) = predict(run, make_console(), texts=[scope["text"]])
    transformers_probabilities = probabilities(scope["logits"].numpy()[None], problem, result.get("temperature", 1.0))
    assert prediction.probabilities == pytest.approx(transformers_probabilities[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("task", "text", "expected_error"),
    [
        ("question_answering", "text", r"data\.long_texts: .*classification"),
        ("classification", ["a", "b"], r"data\.long_texts: windows would read two texts apart; set cut"),
    ],
)
def test_the_key_is_for_the_classification_of_single_texts(tmp_path, task, text, expected_error):
    path = tmp_path / "x.yaml"
    data = {"dataset": "json", "files": {"train": "a.json"}, "max_length": 64, "long_texts": "windows", "text": text}
    path.write_text(yaml.safe_dump({**RECIPE, "task": task, "data": data}))
    with pytest.raises(UserError, match=expected_error):
        load_recipe(path)
