"""data.problem_type: several labels a text, and numbers, from the rows to what is predicted; judged by the gate."""

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
from test_data import HEAD, cache, problem, recipe  # noqa: F401
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
    """Texts of up to three kinds of words: their labels, or how many tenths of the words are animals."""
    draw = np.random.default_rng(0)
    found = []
    for number in range(count):
        kinds = [name for place, name in enumerate(KINDS) if number >> place & 1]
        words = [str(draw.choice(WORDS[draw.choice(kinds)] if kinds else ["stone"])) for _ in range(6)]
        label = kinds if kind == "multi_label" else sum(word in WORDS["animals"] for word in words) / 10
        found.append({"text": " ".join(words), "label": label})
    return found


def write_recipe(folder: Path, kind: str, **sections) -> Path:
    for split, count in (("train", 32), ("validation", 9)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(kind, count)))
    files = {"train": str(folder / "train.jsonl"), "validation": str(folder / "validation.jsonl")}
    data = {"dataset": "json", "files": files, "max_length": 64, "problem_type": kind}
    made = {**RECIPE, "data": data, "train": {**RECIPE["train"], "max_steps": 2}, **sections}
    (folder / "x.yaml").write_text(yaml.safe_dump(made))
    return folder / "x.yaml"


@pytest.fixture(scope="module", params=["multi_label", "regression"])
def run(request, tmp_path_factory) -> Path:
    """A run of two steps, of each problem."""
    folder = tmp_path_factory.mktemp(request.param)
    return train(write_recipe(folder, request.param), folder / "run")


def test_probabilities_are_those_at_the_temperature_of_the_run(run, tmp_path):
    if run.parent.name.startswith("regression"):
        assert "calibration" not in json.loads((run / "metrics.json").read_text())
        return
    shutil.copytree(run, tmp_path / "plain")
    result = json.loads((run / "metrics.json").read_text())
    fitted = result.pop("calibration")
    (tmp_path / "plain" / "metrics.json").write_text(json.dumps(result))
    (calibrated,), (plain,) = (predict(folder, console(), texts=["a cat"]) for folder in (run, tmp_path / "plain"))
    logits = [np.log(np.divide(one.probabilities, 1 - np.array(one.probabilities))) for one in (plain, calibrated)]
    assert fitted["temperature"] != pytest.approx(1, rel=0.01)
    assert logits[0] / fitted["temperature"] == pytest.approx(logits[1], rel=1e-4)


def test_a_run_says_the_same_of_a_text_wherever_it_is_asked(run, tmp_path):
    several = run.parent.name.startswith("multi_label")
    result = json.loads((run / "metrics.json").read_text())
    names = {"micro_f1", "macro_f1", "subset_accuracy"} if several else {"mse", "mae", "pearson", "spearman"}
    assert set(result["validation"]) == {"loss", *names}
    assert result["best"]["metric"] == ("micro_f1" if several else "mse")
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["problem_type"] == ("multi_label_classification" if several else "regression")
    assert list(config["id2label"].values()) == (sorted(KINDS) if several else ["label"])

    written = list(read_predictions(run / "predictions-validation.csv"))
    given = rows("multi_label" if several else "regression", 9)
    said = "labels" if several else "value"
    assert (
        [json.loads(row[said]) for row in written] == pytest.approx([row["label"] for row in given], rel=1e-6)
        if not several
        else [json.loads(row[said]) for row in written] == [sorted(row["label"]) for row in given]
    )
    new = [name for name in written[0] if name.startswith(("predicted", "probability"))]
    label_file(run, console(), write(tmp_path / "a.jsonl", given), tmp_path / "b.jsonl", overwrite=False)
    for row, other in zip(read(tmp_path / "b.jsonl"), written, strict=True):
        assert list(row) == ["text", "label", *new]
        for name in new:
            assert (
                row[name] == other[name]
                if name == "predicted_labels"
                else float(other[name]) == pytest.approx(row[name], abs=1e-5)
            )
    if several:
        threshold = result["calibration"]["threshold"]
        assert json.loads(written[0]["predicted_labels"]) == [
            name for name in sorted(KINDS) if float(written[0][f"probability_{name}"]) > threshold
        ]
    (asked,) = predict(run, console(), texts=[given[0]["text"]])
    assert asked.probabilities == pytest.approx(
        [float(written[0][name]) for name in new if "_label" not in name[:15]], abs=1e-5
    )
    measured = evaluate(run, console(), "validation")
    assert measured == pytest.approx(result["validation"], abs=1e-5)
    page = (run / "report.html").read_text()
    assert ("How good each label is" in page) == several and ("The largest errors" in page) != several
    assert "Confusion matrix" not in page
    card = (run / "README.md").read_text()
    assert ("of which a text may have several" if several else "The model gives a number") in card


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_the_metrics_are_those_of_scikit_learn_and_scipy():
    draw = np.random.default_rng(1)
    labels = (draw.random((30, 4)) < 0.4).astype(np.float32)
    labels[:, 3] = 0
    logits = (labels * 2 - 1 + draw.normal(size=labels.shape)).astype(np.float32)
    logits[:, 3] = -1
    found = metrics.text_metrics(logits, labels)
    assert found["micro_f1"] == pytest.approx(f1_score(labels, logits > 0, average="micro", zero_division=0))
    assert found["macro_f1"] == pytest.approx(f1_score(labels[:, :3], logits[:, :3] > 0, average="macro"))
    assert found["subset_accuracy"] == pytest.approx(((logits > 0) == labels).all(1).mean())
    numbers = draw.normal(size=30).astype(np.float32)
    given = numbers + draw.normal(size=30).astype(np.float32)
    found = metrics.text_metrics(given[:, None], numbers)
    ranks = [np.argsort(np.argsort(values)) for values in (given, numbers)]
    assert found["pearson"] == pytest.approx(np.corrcoef(given, numbers)[0, 1])
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert (found["mse"], found["mae"]) == pytest.approx(
        (((given - numbers) ** 2).mean(), abs(given - numbers).mean()), rel=1e-5
    )
    constant = metrics.text_metrics(np.ones((30, 1)), numbers)
    assert constant["pearson"] == constant["spearman"] == 0 and all(map(math.isfinite, constant.values()))
    assert set(metrics.text_metrics(np.ones((3, 2)), np.array([0, 1, 0]))) == {"accuracy", "macro_f1"}


def test_numbers_stay_numbers_in_a_batch():
    batch = collate([{"input_ids": np.array([1, 2]), "labels": np.float32(0.25)}] * 2)
    assert batch["labels"].dtype == np.float32 and batch["labels"].tolist() == [0.25, 0.25]
    assert batch["input_ids"].dtype == np.int64


def test_other_names_of_several_labels_are_other_rows(recipe):  # noqa: F811
    many = [{"text": f"t{n}", "label": [n % 3, 3]} for n in range(6)]
    more = "  problem_type: multi_label\n"
    named = [
        recipe(more + f"  label_names: {names}\n", train=many, validation=many)
        for names in ("[a, b, c, d]", "[a, b, c, e]")
    ]
    first = recipe(more + "  label_names: [a, b, c, d]\n", train=many, validation=many)
    splits = classification.load_splits(first)["train"]
    assert splits["label"][:2] == [[0, 3], [1, 3]] and splits.features["label"].feature.names == ["a", "b", "c", "d"]
    assert named and digest_rows(splits) != digest_rows(classification.load_splits(named[1])["train"])


@pytest.mark.parametrize(
    ("kind", "labels", "more", "said"),
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
def test_labels_that_do_not_fit_the_problem_are_one_line(recipe, kind, labels, more, said):  # noqa: F811
    made = [{"text": "x", "label": label} for label in labels]
    found = problem(recipe(f"  problem_type: {kind}\n" + more, train=made, validation=made))
    assert said in found and len(found.splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("data.problem_type=many", "is not one of single_label, multi_label, regression"),
        ("train.save_best=pearson", "train.save_best: 'pearson' is not one of accuracy, macro_f1, loss"),
        ("task=language_modeling", "data.problem_type: is for task classification"),
        ("data.label_names=[a, b]", "data.label_names: the labels of regression are numbers; remove it"),
    ],
)
def test_keys_that_do_not_fit_are_refused(tmp_path, lines, said):
    kind = "  problem_type: regression\n" if "save_best" not in lines else ""
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: cldr_languages\n" + kind)
    with pytest.raises(UserError) as raised:
        load_recipe(tmp_path / "x.yaml", [lines])
    assert said in str(raised.value)


def test_the_gate_is_told_the_problem_and_its_labels(tmp_path):
    for kind, called, shape in (("multi_label", "multi_label_classification", (3,)), ("regression", "regression", ())):
        loaded = load_recipe(write_recipe(tmp_path, kind))
        request = gate_request(loaded, assemble(loaded), "cpu", tmp_path)
        assert request.config["problem_type"] == called
        assert request.batch["labels"].dtype == np.float32 and request.batch["labels"].shape[1:] == shape


def test_probabilities_are_those_of_the_problem():
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
