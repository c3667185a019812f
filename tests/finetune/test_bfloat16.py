"""Test mixed precision: operations in bfloat16, operations in float32, and the verdict of the gate on both."""

from __future__ import annotations

import io
import json
import math
import signal

import numpy as np
import paddle
import pytest
import yaml
from gates import TINY_REFORMER, quiet, reformer_request, request_for, run
from rich.console import Console
from safetensors.numpy import load_file

from models.ctrl import CTRLConfig, CTRLLMHeadModel
from models.operations import ops, precision
from models.reformer import ReformerConfig, ReformerForSequenceClassification
from toolkit.errors import UserError
from toolkit.finetune.finetune import finetune
from toolkit.machine.interruption import SignalInterrupt
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.followup.precision import judge_operations
from toolkit.parity.followup.trace import FaultyOp, OperationTrace
from toolkit.parity.judge.bounds import compare
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.mutants import faults_of_precision
from toolkit.parity.options import check_bfloat16
from toolkit.parity.request.request import dtypes_of
from toolkit.parity.trials.mutation import trial_request, try_mutants
from toolkit.recipe.load import load_recipe
from toolkit.training.trainer import ScheduleCallback

SMALL_CTRL = {**CTRL_TRIAL, "n_layer": 2}
BOTH = ("float64", "bfloat16")


def round_to_bfloat16(value: np.ndarray) -> np.ndarray:
    """Round to the nearest bfloat16, with ties to even."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def is_rounded(value: np.ndarray) -> bool:
    return bool((round_to_bfloat16(value) == value).all())


@pytest.fixture
def draw():
    return np.random.RandomState(0).standard_normal


# -- operations of the ports ----------------------------------------------------------------------------------------


def test_a_product_multiplies_rounded_numbers_forward_and_backward(draw):
    x, y, grad = (draw(shape).astype("float32") for shape in ((2, 5, 48), (2, 7, 48), (2, 5, 7)))
    left_factor, right_factor = paddle.to_tensor(x, stop_gradient=False), paddle.to_tensor(y, stop_gradient=False)
    with precision.cast_to_bfloat16():
        result = ops.product(left_factor, right_factor, transpose_y=True)
    result.backward(paddle.to_tensor(grad))
    low_x, low_y, low_grad = (round_to_bfloat16(value).astype("float64") for value in (x, y, grad))
    expected_values = {
        "result": (result, low_x @ low_y.transpose(0, 2, 1)),
        "left": (left_factor.grad, low_grad @ low_y),
        "right": (right_factor.grad, low_grad.transpose(0, 2, 1) @ low_x),
    }
    for name, (port_value, exact) in expected_values.items():
        assert port_value.dtype == paddle.float32 and is_rounded(port_value.numpy()), name
        # The last bit of nearly cancelling sums depends on float32; no product is off by more than one unit.
        np.testing.assert_allclose(port_value.numpy(), round_to_bfloat16(exact), rtol=2.0**-7, atol=1e-6, err_msg=name)
        assert (port_value.numpy() == round_to_bfloat16(exact)).mean() > 0.99, name


def test_a_linear_layer_adds_its_bias_in_float32(draw):
    layer = ops.Linear(16, 8)
    layer.bias.set_value(draw(8).astype("float32"))
    x = paddle.to_tensor(draw((3, 16)).astype("float32"))
    with precision.cast_to_bfloat16():
        with_bias, without_bias = layer(x), ops.linear(x, layer.weight, None)
    assert is_rounded(without_bias.numpy()) and not is_rounded(with_bias.numpy())
    np.testing.assert_array_equal((without_bias + layer.bias).numpy(), with_bias.numpy())
    assert not is_rounded(layer(x).numpy() - layer.bias.numpy())


def test_softmax_layer_norm_and_loss_stay_in_float32(draw):
    x, labels = paddle.to_tensor(draw((6, 32)).astype("float32")), paddle.arange(6)
    norm = ops.LayerNorm(32)
    with precision.cast_to_bfloat16():
        bfloat16_results = [ops.softmax(x), norm(x), ops.cross_entropy(x, labels)]
    for bfloat16_result, float32_result in zip(
        bfloat16_results, (ops.softmax(x), norm(x), ops.cross_entropy(x, labels)), strict=True
    ):
        np.testing.assert_array_equal(bfloat16_result.numpy(), float32_result.numpy())


def reformer_loss(model, backward: str):
    ids = paddle.to_tensor(np.random.RandomState(1).randint(1, 60, (2, 128)))
    return model(ids, labels=paddle.to_tensor([0, 1])).loss


def ctrl_loss(model, backward: str):
    model.transformer.enable_recompute = backward == "recompute"
    ids = paddle.to_tensor(np.random.RandomState(1).randint(1, 90, (2, 24)))
    return model(ids, labels=ids).loss


MODELS = {
    "reversible": lambda: (ReformerForSequenceClassification(ReformerConfig(**TINY_REFORMER)), reformer_loss),
    "recompute": lambda: (CTRLLMHeadModel(CTRLConfig(**SMALL_CTRL)), ctrl_loss),
}


@pytest.mark.parametrize("backward", MODELS)
def test_a_recomputing_backward_uses_the_precision_of_its_forward(backward):
    """Test a backward pass that starts after the context of the forward's precision has ended."""
    model, loss_of = MODELS[backward]()
    model.train()
    uses_bfloat16 = []
    for layer in model.sublayers():
        if isinstance(layer, ops.Linear):
            layer.register_forward_pre_hook(
                lambda layer, args: uses_bfloat16.append(precision.is_cast_to_bfloat16("linear"))
            )
    with precision.cast_to_bfloat16():
        loss = loss_of(model, backward)
    in_forward = len(uses_bfloat16)
    loss.backward()
    assert all(uses_bfloat16) and in_forward > 4 and len(uses_bfloat16) > in_forward + 4
    assert not precision.is_cast_to_bfloat16("linear")
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {paddle.float32}


# -- the gate -------------------------------------------------------------------------------------------------------


def correct_reformer():
    return reformer_request(TINY_REFORMER, "sequence_classification", "heavy-tailed", dtypes=BOTH)


def correct_ctrl():
    return request_for("ctrl", "causal_lm", SMALL_CTRL, 24, "heavy-tailed", dtypes=BOTH)


RIGHT = {"reformer": correct_reformer, "ctrl": correct_ctrl}


@pytest.mark.parametrize("model", [pytest.param("reformer", marks=pytest.mark.slow), "ctrl"])
def test_a_correct_port_passes_in_bfloat16_and_every_report_shows_it(tmp_path, model):
    report, text = run(RIGHT[model](), tmp_path)
    assert report.passed, report.summary()
    assert text.startswith("PARITY") and "(float64, bfloat16)" in text
    results = json.loads((tmp_path / "parity.json").read_text())
    of_bfloat16 = {tensor["name"]: tensor for tensor in results["tensors"] if tensor["dtype"] == "bfloat16"}
    for name in report.request.weights:
        assert {f"{kind}:{name}" for kind in ("gradient", "accumulated", "updated")} <= of_bfloat16.keys()
    # Both sides were measured in bfloat16: the errors are similar, and far beyond float32's rounding.
    outputs = [t for t in of_bfloat16.values() if t["kind"] == "output" and t["rms"]]
    for key in ("error", "noise_bfloat16"):
        assert 1e-4 < np.median([tensor[key] / tensor["rms"] for tensor in outputs]) < 0.1, key
    assert results["trace"]["faulty"] == [] and results["trace"]["compared"] > 100
    # Master weights are in float32.
    assert max(t["error"] / t["rms"] for t in of_bfloat16.values() if t["kind"] == "updated") < 1e-5
    assert 'name="rounding bfloat16"' in (tmp_path / "junit.xml").read_text()
    page = (tmp_path / "parity.html").read_text()
    assert "P16: the port in bfloat16" in page and 'class="curve-p16"' in page


@pytest.mark.slow
@pytest.mark.parametrize("model", RIGHT)
def test_every_fault_of_mixed_precision_is_caught_and_named(model):
    trials = try_mutants(trial_request(model, "random", 0, dtype="bfloat16"), quiet())
    assert [trial.mutant for trial in trials] == list(faults_of_precision(model))
    assert [(t.mutant.name, t.verdict, t.culprit, t.operation) for t in trials if not t.passed] == []
    assert {t.verdict for t in trials} == {"precision", "rounding"}


def test_no_fault_of_mixed_precision_is_tried_in_float64():
    assert not {mutant.dtype for mutant in faults_of_precision("ctrl")} & set(trial_request("ctrl", "random", 0).dtypes)


def test_a_faulty_operation_is_named_before_operations_that_depend_on_it():
    verdict = Verdict()
    verdict.find("rounding", "output:b", "off", "bfloat16")
    trace = OperationTrace(
        3,
        faulty=[
            FaultyOp("output:a", "a.py:1", "float64", "off", math.inf),
            FaultyOp("probabilities:b", "b.py:2", "bfloat16", "off", 1e4),
            FaultyOp("output:c", "c.py:3", "bfloat16", "off", 9.0),
        ],
    )
    judge_operations(verdict, trace)
    assert [f.name for f in verdict.findings if f.verdict == "precision"] == ["probabilities:b"]
    assert first_at_fault(verdict, ["output:a", "output:b"]).name == "probabilities:b"
    verdict.find("semantics", "output:a", "off", "float64")
    assert first_at_fault(verdict, ["output:a", "output:b"]).name == "output:a"


@pytest.mark.parametrize("trace", [None, OperationTrace(problem="too long")])
def test_a_gate_without_a_comparison_of_single_operations_is_noted(trace):
    verdict = Verdict()
    judge_operations(verdict, trace)
    assert verdict.passed and [note.kind for note in verdict.notes] == ["operations-unseen"]


def test_the_bound_in_bfloat16_is_the_references_own_error():
    noise = {"float64": [1e-16], "float32": [1e-7], "bfloat16": [1e-3, 2e-3]}
    reference_record = TensorRecord([4], True, 1.0, 1.0, 1.0, noise=noise, noise_max=noise)
    for error, is_passed in ((5e-3, True), (7e-3, False)):
        assert (
            compare("output:a", reference_record, TensorStats([4], True, error, error, error), "bfloat16").passed
            == is_passed
        )
    # A tensor without a product has only float32's noise, and gets no extra bound for bfloat16.
    exact = TensorRecord([4], True, 1.0, 1.0, 1.0, noise={key: [1e-8] for key in noise}, noise_max=noise)
    assert not compare("output:a", exact, TensorStats([4], True, 1e-5, 1e-5, 1e-5), "bfloat16").passed


def test_float64_is_added_to_bfloat16_and_a_runs_precision_is_included():
    assert dtypes_of("bfloat16") == ("float64", "bfloat16")
    assert dtypes_of("both") == ("float64", "float32")
    assert dtypes_of("all") == ("float64", "float32", "bfloat16") == dtypes_of("both", "bfloat16")
    assert dtypes_of("float64", "bfloat16") == ("float64", "bfloat16")


def test_a_model_that_goes_stage_by_stage_is_refused():
    request = request_for("ctrl", "causal_lm", SMALL_CTRL, 24, dtypes=BOTH, streamed=True)
    with pytest.raises(UserError, match="stage by stage"):
        check_bfloat16(request)


# -- training -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    paragraphs = (" ".join(words[(start + step) % 8] for step in range(12)) + f" {start}." for start in range(300))
    (folder / "text.txt").write_text("\n\n".join(paragraphs))
    config = {"n_layer": 1, "n_embd": 32, "n_head": 2, "dff": 32, "n_positions": 16, "initializer_range": 0.1}
    recipe = {
        "task": "language_modeling",
        "model": {"name": "ctrl", "config": config},
        "tokenizer": {"vocab_size": 90},
        "data": {"dataset": "text", "sources": {"A": "text.txt"}, "max_length": 16, "validation_fraction": 0.1},
        "train": {"max_steps": 6, "batch_size": 4, "learning_rate": 1e-2, "eval_steps": 3},
    }
    (folder / "x.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "x.yaml"


def train_weights(recipe_file, folder, *overrides: str) -> dict[str, np.ndarray]:
    recipe = load_recipe(recipe_file, [f"train.output_dir={folder}", *overrides])
    finetune(recipe, "a test", Console(file=io.StringIO()))
    return load_file(folder / "model/model.safetensors")


def test_a_cpu_trains_in_bfloat16_with_master_weights_in_float32_and_resumes_bit_for_bit(
    recipe_file, tmp_path, monkeypatch
):
    bfloat16_weights = train_weights(recipe_file, tmp_path / "lowered", "train.precision=bfloat16")
    float32_weights = train_weights(recipe_file, tmp_path / "plain")
    assert {value.dtype for value in bfloat16_weights.values()} == {np.dtype("float32")}
    assert not any(is_rounded(value) for value in bfloat16_weights.values() if value.ndim == 2)
    for name, value in float32_weights.items():
        assert not np.array_equal(bfloat16_weights[name], value), name

    original_step_end, interruptions = ScheduleCallback.on_step_end, []

    def on_step_end(self, args, state, control, **others):
        if state.global_step == 4 and not interruptions:
            interruptions.append(True)
            signal.raise_signal(signal.SIGTERM)
        return original_step_end(self, args, state, control, **others)

    monkeypatch.setattr(ScheduleCallback, "on_step_end", on_step_end)
    with pytest.raises(SignalInterrupt):
        train_weights(recipe_file, tmp_path / "resumed", "train.precision=bfloat16")
    for name, value in train_weights(recipe_file, tmp_path / "resumed", "train.precision=bfloat16").items():
        np.testing.assert_array_equal(value, bfloat16_weights[name], err_msg=name)
