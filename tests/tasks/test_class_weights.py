"""Test train.class_weights: training and the gate use torch's weighted loss, and evaluation the plain one."""

from __future__ import annotations

import csv
import io
import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
import torch
import yaml
from gates import TINY_REFORMER, PreparedGates, quiet, reformer_request, request_for
from sklearn.utils.class_weight import compute_class_weight
from test_data import HEAD, ROWS, cache, recipe  # noqa: F401
from test_problem_types import write_recipe
from test_train import RECIPE, WORDS, assert_same_run, recipe_file, train  # noqa: F401
from test_trainer import CLASSES, Network, compute_gradients, make_examples, make_finetuner

from models.families import FAMILIES
from models.operations import losses
from models.port.base import model_outputs
from toolkit.errors import UserError
from toolkit.finetune.assembly import assemble
from toolkit.finetune.gate import gate_request
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.inputs.class_labels import contrast_labels, spread_labels_by_weight
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.measure.updates import count_loss_terms, weigh_terms
from toolkit.parity.mutants import catalogue
from toolkit.parity.mutants.shared_faults import CLASS_WEIGHTS
from toolkit.parity.reference import own_loss
from toolkit.parity.request.build import batch_of, job_of, labels_of
from toolkit.parity.trials.mutation import trial_request, try_mutants, weighted_trials
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.predictions import read_predictions
from toolkit.tasks.classification import class_weights
from toolkit.tasks.classification import task as classification
from toolkit.training.trainer import Finetuner

WEIGHTS = (0.25, 3.0, 1.5)
#: The labels of four texts: a single label each (one is ignored), or several.
LABELS = {"single_label_classification": [2, 0, -100, 1, 0], "multi_label_classification": np.eye(5, 3) * 1.0}


class Config:
    """Hold the values that the loss reads of a configuration."""

    num_labels = 3

    def __init__(self, problem_type: str) -> None:
        self.problem_type = problem_type


def scores(dtype: str) -> np.ndarray:
    return (3 * np.random.default_rng(0).standard_normal((5, 3))).astype(dtype)


def torch_loss(kind: str, logits: torch.Tensor) -> torch.Tensor:
    """Return torch's own weighted loss."""
    weights = torch.tensor(WEIGHTS, dtype=logits.dtype)
    if kind == "single_label_classification":
        return torch.nn.CrossEntropyLoss(weight=weights)(logits, torch.tensor(LABELS[kind]))
    return torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, torch.tensor(LABELS[kind], dtype=logits.dtype))


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_weighted_loss_and_its_gradient_equal_torchs(kind, dtype):
    logits = torch.tensor(scores(dtype), requires_grad=True)
    expected_loss = torch_loss(kind, logits)
    expected_loss.backward()
    port_logits = paddle.to_tensor(scores(dtype), stop_gradient=False)
    labels = np.asarray(LABELS[kind])
    labels = paddle.to_tensor(labels if labels.ndim == 1 else labels.astype(dtype))
    loss = losses.classification(Config(kind), port_logits, labels, np.array(WEIGHTS, np.float32))
    loss.backward()
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(loss.numpy(), expected_loss.detach().numpy(), rtol=tolerance)
    np.testing.assert_allclose(port_logits.grad.numpy(), logits.grad.numpy(), rtol=tolerance, atol=tolerance)
    plain = losses.classification(Config(kind), port_logits, labels)
    assert abs(float(plain) - float(loss)) > 0.05  # these weights matter here


@pytest.mark.parametrize("kind", LABELS)
def test_the_gate_checks_the_references_weighted_loss_by_its_definition(kind):
    truth = {"logits": scores("float64"), "loss": torch_loss(kind, torch.tensor(scores("float64"))).numpy()}
    batch, model = {"labels": np.asarray(LABELS[kind])}, torch.nn.Module()
    model.config = Config(kind)
    loss_check = own_loss.check_loss(truth, batch, "sequence_classification", model, WEIGHTS)
    assert loss_check.units < loss_check.allowed / 10 and loss_check.place.startswith("class_weights.py:")
    for wrong_weights in (None, WEIGHTS[::-1]):
        loss_check = own_loss.check_loss(truth, batch, "sequence_classification", model, wrong_weights)
        assert not loss_check.units <= loss_check.allowed


def test_balanced_weights_equal_those_of_scikit_learn():
    labels = np.random.default_rng(0).choice([0, 1, 3], 50, p=[0.7, 0.2, 0.1])
    weights = class_weights.balanced_weights(np.bincount(labels, minlength=5), len(labels))
    expected_weights = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    np.testing.assert_allclose(weights[[0, 1, 3]], expected_weights, rtol=1e-15)
    assert weights[[2, 4]].tolist() == [1, 1]  # no text has these

    several = np.random.default_rng(1).random((50, 4)) < [0.1, 0.5, 0, 1]
    weights = class_weights.positive_weights(several.sum(0), len(several))
    for label in (0, 1):
        no, yes = compute_class_weight("balanced", classes=np.array([False, True]), y=several[:, label])
        assert weights[label] == pytest.approx(yes / no, rel=1e-15)
    assert weights[[2, 3]].tolist() == [1, 1]  # every text, or none, has these


def weights_of_recipe(loaded_recipe) -> np.ndarray | None:
    return class_weights.class_weights_of(loaded_recipe, classification.load_splits(loaded_recipe)["train"])


@pytest.fixture
def weighted_recipe(recipe):  # noqa: F811
    """Return a function that writes a recipe with class weights and more lines of data keys."""

    def make(weights: str, more: str = "", **splits):
        return recipe(more, (f"train.class_weights={weights}",), **splits)

    return make


def test_a_recipe_gives_weights_by_the_names_of_labels(weighted_recipe):
    rare = [{"text": f"t{n}", "label": n % 4 == 0} for n in range(12)]
    weights = weights_of_recipe(weighted_recipe("balanced", train=rare, validation=rare))
    assert weights.tolist() == pytest.approx([12 / (2 * 9), 12 / (2 * 3)]) and weights.dtype == np.float32
    label_names = "  label_names: {'false': fine, 'true': broken}\n"
    assert weights_of_recipe(weighted_recipe("{broken: 4}", label_names, train=rare, validation=rare)).tolist() == [
        1,
        4,
    ]
    assert weights_of_recipe(weighted_recipe("null", train=rare, validation=rare)) is None
    stars = [{"text": f"t{n}", "label": n % 3} for n in range(12)]
    assert weights_of_recipe(weighted_recipe("{2: 0.5}", train=stars, validation=stars)).tolist() == [1, 1, 0.5]
    lists = [{"text": f"t{n}", "label": ["a", "b"] if n % 4 == 0 else ["b"]} for n in range(12)]
    several = "  problem_type: multi_label\n"
    weights = weights_of_recipe(weighted_recipe("balanced", several, train=lists, validation=lists))
    assert weights.tolist() == [3, 1]  # nine texts without a, three with it; all have b
    assert weights_of_recipe(weighted_recipe("{a: 2}", several, train=lists, validation=lists)).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("lines", "line", "label", "expected_error"),
    [
        ("class_weights: balance", 3, "", "'balance' weighs no labels; write balanced, or {LABEL"),
        ("class_weights: {}", 3, "", "{} weighs no labels"),
        ("class_weights: [1, 2]", 3, "", "[1, 2] weighs no labels"),
        ("class_weights:\n    yes: 1\n    no: 0", 5, "no", "0 is no weight of a label; it should be"),
        ("class_weights: {yes: .inf}", 3, "yes", "inf is no weight"),
        ("class_weights: {yes: .nan}", 3, "yes", "nan is no weight"),
        ("class_weights: {yes: true}", 3, "yes", "True is no weight"),
        ("class_weights: {yes: a}", 3, "yes", "'a' is no weight"),
        ("class_weights: {yes: {a: 1}}", 3, "yes", "{'a': 1} is no weight"),
        (f"class_weights: {{yes: {10**400}}}", 3, "yes", "1000"),
        ("class_weights:\n    yes: 2\n    yess: 2", 5, "yess", "the data has no label of this name, did you mean yes?"),
        ("class_weights: {other: 2}", 3, "other", "the data has no label of this name; known: no, yes"),
    ],
)  # fmt: skip
def test_a_faulty_weight_is_reported_in_one_line_at_its_place(tmp_path, lines, line, label, expected_error):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    files = f"{{train: {tmp_path}/rows.jsonl, validation: {tmp_path}/rows.jsonl}}"
    head = HEAD.replace(
        "train: {epochs: 1, learning_rate: 1e-3}", f"train:\n  epochs: 1\n  {lines}\n  learning_rate: 1e-3"
    )
    (tmp_path / "x.yaml").write_text(f"{head}  dataset: json\n  files: {files}\n")
    with pytest.raises(UserError) as error_info:
        weights_of_recipe(load_recipe(tmp_path / "x.yaml"))
    text = str(error_info.value)
    key = ".".join(filter(None, ("train.class_weights", label)))
    assert f"x.yaml:{line}: {key}: {expected_error}" in text and len(text.splitlines()) == 1 and len(text) < 1000


@pytest.mark.parametrize(
    ("lines", "expected_error"),
    [
        (("data.problem_type=regression",), "train.class_weights: the labels of regression are numbers"),
        (("task=language_modeling",), "train.class_weights: is for task classification, not for language_modeling"),
    ],
)
def test_class_weights_without_classes_are_refused(recipe, lines, expected_error):  # noqa: F811
    with pytest.raises(UserError) as error_info:
        recipe("", ("train.class_weights=balanced", *lines))
    assert expected_error in str(error_info.value)


class WeightedNetwork(Network):
    """A small network with the loss of the ports."""

    class_weights = np.array(WEIGHTS, np.float32)

    def forward(self, input_ids, labels=None):
        mean_embeddings = self.layer_norm(self.embedding(input_ids).mean(axis=1))
        logits = self.output(mean_embeddings)
        weights = self.class_weights if self.training else None
        loss = losses.classification(Config("single_label_classification"), logits, labels, weights)
        return model_outputs.SequenceClassifierOutput(loss=loss, logits=logits)


@pytest.mark.parametrize("size", [12, 10, 5])
def test_accumulating_gives_the_weighted_mean_of_one_large_batch(tmp_path, size):
    rows = sorted(
        make_examples(size), key=lambda row: row["labels"]
    )  # the weights of micro-batches differ from their sizes
    large_batches = make_finetuner(tmp_path / "one", WeightedNetwork(), batch_size=12)
    micro_batches = make_finetuner(tmp_path / "many", WeightedNetwork(), batch_size=4, gradient_accumulation_steps=3)
    (loss, expected_gradients), (accumulated_loss, accumulated_gradients) = (
        compute_gradients(large_batches, rows),
        compute_gradients(micro_batches, rows),
    )
    assert accumulated_loss == pytest.approx(loss, rel=1e-6)
    for name in expected_gradients:
        np.testing.assert_allclose(
            accumulated_gradients[name], expected_gradients[name], rtol=1e-5, atol=1e-7, err_msg=name
        )
    batch = {name: paddle.to_tensor(np.stack([row[name] for row in rows])) for name in rows[0]}
    logits = torch.tensor(large_batches.model(**batch).logits.numpy())
    expected_loss = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS))(
        logits, torch.tensor([row["labels"] for row in rows])
    )
    assert loss == pytest.approx(float(expected_loss), rel=1e-5) and len(WEIGHTS) == CLASSES


def test_the_gates_examples_weigh_as_their_classes():
    labels = {"labels": np.array([1, -100, 0])}
    terms = count_loss_terms("classification", labels, WEIGHTS)
    assert terms.tolist() == [3, 0, 0.25] and weigh_terms(terms).sum() == pytest.approx(1)
    assert weigh_terms(np.array([0.1, 0.3])).tolist() == pytest.approx([0.25, 0.75])  # less than 1 together
    assert count_loss_terms("classification", {"labels": np.eye(3)}, WEIGHTS).tolist() == [3, 3, 3]


def test_the_gate_contrasts_classes_by_their_weights():
    labels = np.zeros(4, np.int64)
    assert contrast_labels(labels, WEIGHTS, np.array([0])).tolist() == [1, 0, 2, 1]
    assert contrast_labels(labels[:1], WEIGHTS, np.array([1, 1])).tolist() == [0]  # class 1 has the largest weight
    assert contrast_labels(np.zeros((2, 3), np.float32), WEIGHTS, np.zeros((1, 3))).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert spread_labels_by_weight(np.zeros(3, np.int64), (1.0, 5.0)).tolist() == [1, 1, 0]
    assert spread_labels_by_weight(np.zeros(2, np.int64), WEIGHTS).tolist() == [1, 2]

    alike = replace(reformer_request(TINY_REFORMER), class_weights=WEIGHTS, widened=True)
    batch = {**alike.batch, "labels": np.ones_like(alike.batch["labels"])}
    alike = replace(alike, batch=batch, training=TrainingSettings(batch_size=4, gradient_accumulation_steps=2))
    assert set(batch_of(alike)["labels"].tolist()) > {0, 1}
    assert labels_of(alike)["labels"].tolist() == [1, 2, 0]
    assert job_of(alike).class_weights == WEIGHTS


def rows_with_few_tools(folder: Path) -> Path:
    """Write a recipe over three kinds of words, one of them rare."""
    draw = np.random.default_rng(0)
    counts = {"animals": 12, "fruit": 9, "tools": 3}
    for split_name in ("train", "validation"):
        with (folder / f"{split_name}.csv").open("w", newline="") as file:
            rows = [
                (" ".join(draw.choice(WORDS[kind], 6)), kind) for kind, count in counts.items() for _ in range(count)
            ]
            csv.writer(file).writerows([("text", "label"), *rows])
    data = {**RECIPE["data"], "files": {"train": "train.csv", "validation": "validation.csv"}, "max_length": 64}
    steps = {"max_steps": 4, "eval_steps": 2, "class_weights": "balanced"}
    (folder / "x.yaml").write_text(yaml.safe_dump({**RECIPE, "data": data, "train": {**RECIPE["train"], **steps}}))
    return folder / "x.yaml"


def test_a_run_trains_on_the_weighted_loss_and_reports_the_plain_one(tmp_path, monkeypatch):
    recipe_path = rows_with_few_tools(tmp_path)
    out = io.StringIO()
    folder = train(recipe_path, tmp_path / "run")
    results = json.loads((folder / "metrics.json").read_text())
    expected_weights = {"animals": 24 / (3 * 12), "fruit": 24 / (3 * 9), "tools": 24 / (3 * 3)}
    assert results["class_weights"] == pytest.approx(expected_weights)
    losses = []
    for row in read_predictions(folder / "predictions-validation.csv"):
        logits = results["calibration"]["temperature"] * np.log(
            [float(row[f"probability_{name}"]) for name in expected_weights]
        )
        losses.append(np.logaddexp.reduce(logits) - logits[list(expected_weights).index(row["label"])])
    assert results["validation"]["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["train"]["class_weights"] == "balanced"
    assert "The loss that trained weighs labels" in (folder / "README.md").read_text()
    loaded_recipe = load_recipe(recipe_path)
    assemble(loaded_recipe)
    assert any(
        note.startswith("the training loss weighs labels: animals 0.6667, fruit 0.8889, tools 2.667")
        for note in loaded_recipe.findings.notes
    )
    assert "class_weights" not in (folder / "model" / "config.json").read_text() and not out.getvalue()

    plain = train(recipe_path, tmp_path / "plain", "train.class_weights=null")
    assert "class_weights" not in json.loads((plain / "metrics.json").read_text())
    assert (plain / "model/model.safetensors").read_bytes() != (folder / "model/model.safetensors").read_bytes()

    step = Finetuner.training_step

    def stop(self, *arguments):
        if self.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(Finetuner, "training_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(recipe_path, tmp_path / "resumed")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"train\.class_weights: balanced there, None here"):
        train(recipe_path, tmp_path / "resumed", "train.class_weights=null")
    resumed_run = train(recipe_path, tmp_path / "resumed")
    assert (resumed_run / "model/model.safetensors").read_bytes() == (folder / "model/model.safetensors").read_bytes()


def test_the_gate_gets_the_weights_of_the_run(tmp_path):
    for make, kind in ((rows_with_few_tools, 1), (lambda folder: write_recipe(folder, "multi_label"), 2)):
        loaded_recipe = load_recipe(make(tmp_path), ["train.class_weights=balanced"])
        job = assemble(loaded_recipe)
        request = gate_request(loaded_recipe, job, "cpu", tmp_path)
        assert (
            request.class_weights == tuple(job.prepared_data.class_weights.tolist()) and len(request.class_weights) == 3
        )
        assert batch_of(request)["labels"].ndim == kind
        heaviest = np.argmax(request.class_weights)
        labels = batch_of(request)["labels"]
        assert heaviest in labels if kind == 1 else labels[2].all()


def test_faults_of_class_weights_have_their_own_names():
    names = [mutant.name for several in (*map(catalogue, FAMILIES), *CLASS_WEIGHTS.values()) for mutant in set(several)]
    assert len({*names}) == len({mutant for s in (*map(catalogue, FAMILIES), *CLASS_WEIGHTS.values()) for mutant in s})
    assert list(weighted_trials(trial_request("ctrl", "random", 0))) == []  # a language model has no classes


#: Small, since nothing before the loss matters here.
ONE_LAYER = {
    **TINY_REFORMER,
    "attn_layers": ["local"],
    "axial_pos_shape": [4, 8],
    "max_position_embeddings": 32,
    "local_attn_chunk_length": 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASS_WEIGHTS)
def test_every_fault_of_class_weights_is_caught_and_named(kind):
    plain = reformer_request(ONE_LAYER, dtypes=("float64",), training=TrainingSettings(max_grad_norm=0.001))
    (request,) = (trial for trial in weighted_trials(plain) if trial.config["problem_type"] == kind)
    trials = try_mutants(request, quiet())
    assert len(trials) == len(CLASS_WEIGHTS[kind])
    assert [(t.mutant.name, t.verdict, t.culprit, t.operation) for t in trials if not t.passed] == []


@pytest.mark.slow
def test_correct_ports_with_class_weights_pass_in_both_dtypes(tmp_path):
    several = {**ONE_LAYER, "problem_type": "multi_label_classification"}
    config = {**CTRL_TRIAL, "num_labels": 3}
    requests = [
        reformer_request(several, class_weights=(1e-3, 40.0, 2.0)),  # 1e-3 is not exact in float32
        request_for("ctrl", "sequence_classification", config, 24, class_weights=(1e-3, 40.0, 2.0)),
    ]
    gates = PreparedGates(tmp_path / "jobs", requests)
    for number, request in enumerate(requests):
        report, text = gates.run(request, tmp_path / str(number))
        assert report.passed, text
        assert report.reference.own_loss.units < report.reference.own_loss.allowed / 3


@pytest.mark.slow
def test_a_run_with_class_weights_passes_its_gate(tmp_path):
    quick = ("model.config.attn_layers=[local]", "train.max_steps=2")
    folder = train(rows_with_few_tools(tmp_path), tmp_path / "run", *quick, skip=None)
    assert json.loads((folder / "parity" / "parity.json").read_text())["passed"] is True
