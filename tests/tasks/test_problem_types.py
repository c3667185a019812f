"""Test data.problem_type: several labels per text and numbers, from the rows to predictions and the gate."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console
from sklearn.metrics import f1_score
from test_data import HEAD, cache, error_of, recipe  # noqa: F401
from test_tables import read, write
from test_train import RECIPE, WORDS, recipe_file, train  # noqa: F401

from toolkit.commands.label_file import label_file
from toolkit.commands.predict import evaluate, predict
from toolkit.data.batches import collate
from toolkit.errors import UserError
from toolkit.files.digest import digest_rows
from toolkit.finetune.assembly import assemble
from toolkit.finetune.gate import gate_request
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.predictions import read_predictions
from toolkit.tasks import metrics
from toolkit.tasks.classification import task as classification

KINDS = list(WORDS)


def rows(kind: str, count: int) -> list[dict]:
    """Return texts of up to three kinds of words, with their labels or with the tenths of animals."""
    draw = np.random.default_rng(0)
    examples = []
    for number in range(count):
        kinds = [name for place, name in enumerate(KINDS) if number >> place & 1]
        words = [str(draw.choice(WORDS[draw.choice(kinds)] if kinds else ["stone"])) for _ in range(6)]
        label = kinds if kind == "multi_label" else sum(word in WORDS["animals"] for word in words) / 10
        examples.append({"text": " ".join(words), "label": label})
    return examples


def write_recipe(folder: Path, kind: str, **sections) -> Path:
    for split_name, count in (("train", 32), ("validation", 9)):
        (folder / f"{split_name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(kind, count)))
    files = {"train": str(folder / "train.jsonl"), "validation": str(folder / "validation.jsonl")}
    data = {"dataset": "json", "files": files, "max_length": 64, "problem_type": kind}
    recipe_content = {**RECIPE, "data": data, "train": {**RECIPE["train"], "max_steps": 2}, **sections}
    (folder / "x.yaml").write_text(yaml.safe_dump(recipe_content))
    return folder / "x.yaml"


@pytest.fixture(scope="module", params=["multi_label", "regression"])
def run(request, tmp_path_factory) -> Path:
    """Return a run of two steps for each problem type."""
    folder = tmp_path_factory.mktemp(request.param)
    return train(write_recipe(folder, request.param), folder / "run")


def test_probabilities_use_the_temperature_of_the_run(run, tmp_path):
    if run.parent.name.startswith("regression"):
        assert "calibration" not in json.loads((run / "metrics.json").read_text())
        return
    shutil.copytree(run, tmp_path / "plain")
    result = json.loads((run / "metrics.json").read_text())
    calibration = result.pop("calibration")
    (tmp_path / "plain" / "metrics.json").write_text(json.dumps(result))
    (calibrated_prediction,), (plain_prediction,) = (
        predict(folder, make_console(), texts=["a cat"]) for folder in (run, tmp_path / "plain")
    )
    logits = [
        np.log(np.divide(prediction.probabilities, 1 - np.array(prediction.probabilities)))
        for prediction in (plain_prediction, calibrated_prediction)
    ]
    assert calibration["temperature"] != pytest.approx(1, rel=0.01)
    assert logits[0] / calibration["temperature"] == pytest.approx(logits[1], rel=1e-4)


def test_all_commands_predict_the_same_for_a_text(run, tmp_path):
    several = run.parent.name.startswith("multi_label")
    result = json.loads((run / "metrics.json").read_text())
    names = {"micro_f1", "macro_f1", "subset_accuracy"} if several else {"mse", "mae", "pearson", "spearman"}
    assert set(result["validation"]) == {"loss", *names}
    assert result["best"]["metric"] == ("micro_f1" if several else "mse")
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["problem_type"] == ("multi_label_classification" if several else "regression")
    assert list(config["id2label"].values()) == (sorted(KINDS) if several else ["label"])

    saved_rows = list(read_predictions(run / "predictions-validation.csv"))
    examples = rows("multi_label" if several else "regression", 9)
    column = "labels" if several else "value"
    assert (
        [json.loads(row[column]) for row in saved_rows] == pytest.approx([row["label"] for row in examples], rel=1e-6)
        if not several
        else [json.loads(row[column]) for row in saved_rows] == [sorted(row["label"]) for row in examples]
    )
    new = [name for name in saved_rows[0] if name.startswith(("predicted", "probability"))]
    label_file(run, make_console(), write(tmp_path / "a.jsonl", examples), tmp_path / "b.jsonl", overwrite=False)
    for row, saved_row in zip(read(tmp_path / "b.jsonl"), saved_rows, strict=True):
        assert list(row) == ["text", "label", *new]
        for name in new:
            assert (
                row[name] == saved_row[name]
                if name == "predicted_labels"
                else float(saved_row[name]) == pytest.approx(row[name], abs=1e-5)
            )
    if several:
        threshold = result["calibration"]["threshold"]
        assert json.loads(saved_rows[0]["predicted_labels"]) == [
            name for name in sorted(KINDS) if float(saved_rows[0][f"probability_{name}"]) > threshold
        ]
    (prediction,) = predict(run, make_console(), texts=[examples[0]["text"]])
    assert prediction.probabilities == pytest.approx(
        [float(saved_rows[0][name]) for name in new if "_label" not in name[:15]], abs=1e-5
    )
    evaluated_metrics = evaluate(run, make_console(), "validation")
    assert evaluated_metrics == pytest.approx(result["validation"], abs=1e-5)
    page = (run / "report.html").read_text()
    assert ("How good each label is" in page) == several and ("The largest errors" in page) != several
    assert "Confusion matrix" not in page
    card = (run / "README.md").read_text()
    assert ("of which a text may have several" if several else "The model gives a number") in card


def make_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_the_metrics_equal_those_of_scikit_learn_and_scipy():
    draw = np.random.default_rng(1)
    labels = (draw.random((30, 4)) < 0.4).astype(np.float32)
    labels[:, 3] = 0
    logits = (labels * 2 - 1 + draw.normal(size=labels.shape)).astype(np.float32)
    logits[:, 3] = -1
    scores = metrics.text_metrics(logits, labels)
    assert scores["micro_f1"] == pytest.approx(f1_score(labels, logits > 0, average="micro", zero_division=0))
    assert scores["macro_f1"] == pytest.approx(f1_score(labels[:, :3], logits[:, :3] > 0, average="macro"))
    assert scores["subset_accuracy"] == pytest.approx(((logits > 0) == labels).all(1).mean())
    numbers = draw.normal(size=30).astype(np.float32)
    predicted_numbers = numbers + draw.normal(size=30).astype(np.float32)
    scores = metrics.text_metrics(predicted_numbers[:, None], numbers)
    ranks = [np.argsort(np.argsort(values)) for values in (predicted_numbers, numbers)]
    assert scores["pearson"] == pytest.approx(np.corrcoef(predicted_numbers, numbers)[0, 1])
    assert scores["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert (scores["mse"], scores["mae"]) == pytest.approx(
        (((predicted_numbers - numbers) ** 2).mean(), abs(predicted_numbers - numbers).mean()), rel=1e-5
    )
    constant = metrics.text_metrics(np.ones((30, 1)), numbers)
    assert constant["pearson"] == constant["spearman"] == 0 and all(map(math.isfinite, constant.values()))
    assert set(metrics.text_metrics(np.ones((3, 2)), np.array([0, 1, 0]))) == {"accuracy", "macro_f1"}


def test_numbers_stay_numbers_in_a_batch():
    batch = collate([{"input_ids": np.array([1, 2]), "labels": np.float32(0.25)}] * 2)
    assert batch["labels"].dtype == np.float32 and batch["labels"].tolist() == [0.25, 0.25]
    assert batch["input_ids"].dtype == np.int64


def test_other_names_of_several_labels_are_other_rows(recipe):  # noqa: F811
    examples = [{"text": f"t{n}", "label": [n % 3, 3]} for n in range(6)]
    more = "  problem_type: multi_label\n"
    named_recipes = [
        recipe(more + f"  label_names: {names}\n", train=examples, validation=examples)
        for names in ("[a, b, c, d]", "[a, b, c, e]")
    ]
    first = recipe(more + "  label_names: [a, b, c, d]\n", train=examples, validation=examples)
    splits = classification.load_splits(first)["train"]
    assert splits["label"][:2] == [[0, 3], [1, 3]] and splits.features["label"].feature.names == ["a", "b", "c", "d"]
    assert named_recipes and digest_rows(splits) != digest_rows(classification.load_splits(named_recipes[1])["train"])


@pytest.mark.parametrize(
    ("kind", "labels", "more", "expected_error"),
    [
        ("multi_label", ["a", "b"], "", "data.label: row 1 of the train split has 'a' as its label; it should be"),
        ("multi_label", [["a"], ["a"]], "", "data.label: the train split has 1 labels in all"),
        ("multi_label", [["a"], ["b", ""]], "", "data.label: row 2 of the train split has ['b', ''] as its label"),
        ("multi_label", [["a"], ["b"]], "  label_names: {a: x, c: y}\n", "data.label_names: does not name the label b"),
        ("regression", ["a", "b"], "", "data.label: row 1 of the train split has 'a' as its label; it should be a num"),
        ("regression", [1.0, 1e300], "", "data.label: row 2 of the train split has 1e+300 as its label"),
        ("regression", [1.0, -100], "", "data.label: row 2 of the train split has -100.0 as its label, which marks"),
        ("regression", [1.0, 1.0], "", "data.label: all 2 rows of the train split have the same label"),
        ("single_label", [0.5, 1.5], "", "data.label: the column label of the train split holds 0.5"),
    ],
)  # fmt: skip
def test_unsuitable_labels_are_reported_in_one_line(recipe, kind, labels, more, expected_error):  # noqa: F811
    examples = [{"text": "x", "label": label} for label in labels]
    message = error_of(recipe(f"  problem_type: {kind}\n" + more, train=examples, validation=examples))
    assert expected_error in message and len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "expected_error"),
    [
        ("data.problem_type=many", "is not one of single_label, multi_label, regression"),
        ("train.save_best=pearson", "train.save_best: 'pearson' is not one of accuracy, macro_f1, loss"),
        ("task=language_modeling", "data.problem_type: is for task classification"),
        ("data.label_names=[a, b]", "data.label_names: the labels of regression are numbers; remove it"),
    ],
)
def test_unsuitable_keys_of_a_problem_are_refused(tmp_path, lines, expected_error):
    kind = "  problem_type: regression\n" if "save_best" not in lines else ""
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: cldr_languages\n" + kind)
    with pytest.raises(UserError) as error_info:
        load_recipe(tmp_path / "x.yaml", [lines])
    assert expected_error in str(error_info.value)


def test_the_gate_gets_the_problem_and_its_labels(tmp_path):
    for kind, problem_name, shape in (
        ("multi_label", "multi_label_classification", (3,)),
        ("regression", "regression", ()),
    ):
        loaded_recipe = load_recipe(write_recipe(tmp_path, kind))
        request = gate_request(loaded_recipe, assemble(loaded_recipe), "cpu", tmp_path)
        assert request.config["problem_type"] == problem_name
        assert request.batch["labels"].dtype == np.float32 and request.batch["labels"].shape[1:] == shape


def test_probabilities_fit_the_problem():
    logits = np.array([[0.0, math.log(3), -1e4]])
    assert classification.probabilities(logits, "multi_label")[0] == pytest.approx([0.5, 0.75, 0])
    assert classification.probabilities(logits, "single_label")[0] == pytest.approx([0.25, 0.75, 0])
    assert (classification.probabilities(logits, "regression") == logits).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multi_label", "regression"])
def test_the_gate_judges_the_loss_that_trains(kind, tmp_path):
    quick = ("parity.dtype=float64", "parity.examples=2", "model.config.attn_layers=[local]")
    folder = train(write_recipe(tmp_path, kind), tmp_path / "run", *quick, skip=None)
    report = json.loads((folder / "parity" / "parity.json").read_text())
    assert report["passed"] is True
