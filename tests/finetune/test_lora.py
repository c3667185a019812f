"""Test low-rank adaptation: trained and frozen weights, its gate, its faults, its checkpoints and the saved model."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gates
import numpy as np
import paddle
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from test_train import assert_same_run, recipe_file, run, train  # noqa: F401

from models.ctrl.config import CTRLConfig
from models.families import part
from models.operations.ops import LayerNorm, Linear, add_bias
from models.port import lora
from models.port.adapter import LoRALinear, add_adapter, merge_adapter
from models.port.lora import LoRA, draw_adapter
from models.port.weights import Parameter
from models.reformer.config import ReformerConfig
from toolkit.errors import UserError
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.families.reformer.trial import SMALL_REFORMER as REFORMER_TRIAL
from toolkit.parity.mutants.shared_faults import LORA
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import trial_request, try_mutants
from toolkit.recipe.load import load_recipe
from toolkit.training.trainer import Finetuner

CONFIGS = {
    "ctrl": (CTRLConfig, CTRL_TRIAL, "causal_lm"),
    "reformer": (ReformerConfig, REFORMER_TRIAL, "sequence_classification"),
}
#: For each family, the settings that keep all activations, and the settings that recompute layers.
BACKWARDS = {"ctrl": (False, True), "reformer": ("autograd", "reversible")}


def adapter_for(family: str, **changes: Any) -> LoRA:
    targets = tuple(part(family, "weights").LORA_TARGETS)
    return replace(LoRA(rank=4, alpha=6.0, dropout=0.1, targets=targets), **changes)


def adapted_model(family: str, backward: Any, seed: int = 0) -> paddle.nn.Layer:
    """Return a port with an adapter whose B is not zero, in float64 without dropout."""
    kind, keys, head = CONFIGS[family]
    rates = {key: 0.0 for key in kind(**keys).to_hf() if key.endswith(("pdrop", "dropout_prob"))}
    options = {"backward": backward} if family == "reformer" else {}
    model = part(family, "modeling").CLASSES[head](kind(**{**keys, **rates, **options}))
    if family == "ctrl":
        model.transformer.enable_recompute = backward
    add_adapter(model, adapter_for(family, dropout=0.0))
    draw = np.random.default_rng(seed)
    for parameter in model.parameters():
        parameter.set_value((0.3 * draw.standard_normal(parameter.shape)).astype("float32"))
    return model.to(dtype="float64")


def batch_for(family: str) -> dict[str, paddle.Tensor]:
    _, keys, head = CONFIGS[family]
    length = 48 if family == "ctrl" else 128
    ids = np.random.default_rng(1).integers(1, keys["vocab_size"], (2, length))
    labels = ids if head == "causal_lm" else np.array([0, 2])
    return {"input_ids": paddle.to_tensor(ids), "labels": paddle.to_tensor(labels)}


# -- the layer ------------------------------------------------------------------------------------------------------


def test_new_factors_keep_the_scale_of_inputs_and_start_at_zero():
    """Check that A x is about as large as x, and that B A x is 0."""
    table = {"layers.0.query.weight": Parameter((16, 4096), "linear"), "head.query.weight": Parameter((4, 4), "linear")}
    factors = dict(draw_adapter(table, LoRA(rank=8, alpha=16.0, dropout=0.0, targets=("query",)), 3))
    first, second = (factors[f"layers.0.query.lora_{factor}.weight"] for factor in "AB")
    assert len(factors) == 2 and (first.shape, second.shape) == ((8, 4096), (16, 8))
    assert first.std() == pytest.approx(4096**-0.5, rel=0.02) and not second.any()
    assert not np.array_equal(first, dict(draw_adapter(table, LoRA(8, 16.0, 0.0, ("query",)), 4))[next(iter(factors))])


@pytest.mark.parametrize("bias", [True, False])
def test_a_map_computes_the_papers_formula_and_keeps_its_weight(bias):
    base = Linear(5, 3, bias_attr=None if bias else False)
    weight = base.weight.numpy()
    layer = LoRALinear(base, LoRA(2, 6.0, 0.0, ("x",)))
    layer.lora_B.weight.set_value(np.random.default_rng(0).standard_normal((2, 3)).astype("float32"))
    for parameter in (layer.weight, layer.bias) if bias else (layer.weight,):
        parameter.stop_gradient = True
    x = paddle.to_tensor(np.random.default_rng(1).standard_normal((4, 5)).astype("float32"), stop_gradient=False)
    output = layer(x)
    first, second = layer.lora_A.weight.numpy(), layer.lora_B.weight.numpy()
    bias_values = layer.bias.numpy() if bias else 0.0
    np.testing.assert_allclose(
        output.numpy(), x.numpy() @ (weight + 3.0 * first @ second) + bias_values, rtol=1e-5, atol=1e-6
    )
    output.sum().backward()
    assert layer.weight.grad is None and x.grad is not None
    assert layer.lora_A.weight.grad is not None and layer.lora_B.weight.grad is not None


def test_operations_of_the_port_give_no_gradient_to_frozen_weights():
    x = paddle.to_tensor(np.ones((2, 3), "float32"), stop_gradient=False)
    bias, norm = paddle.zeros([3]), LayerNorm(3)
    for parameter in norm.parameters():
        parameter.stop_gradient = True
    norm(add_bias(x, bias) * x).sum().backward()
    assert x.grad is not None and bias.grad is None and norm.weight.grad is None


# -- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CONFIGS)
def test_recomputed_layers_have_the_gradients_of_plain_autograd(family):
    """Test frozen embeddings, where no input of the first layer requires a gradient."""
    gradients = []
    for backward in BACKWARDS[family]:
        model = adapted_model(family, backward)
        model.train()
        paddle.seed(3)  # rotations
        model(**batch_for(family)).loss.backward()
        gradients.append({n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None})
    plain_gradients, recomputed_gradients = gradients
    factors = lora.adapter_parameters(model.parameter_table, model.adapter)
    assert plain_gradients.keys() == recomputed_gradients.keys() == factors.keys() and len(plain_gradients) >= 8
    for name, gradient in plain_gradients.items():
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(
            recomputed_gradients[name], gradient, rtol=1e-9, atol=1e-12 * np.abs(gradient).max(), err_msg=name
        )


@pytest.mark.parametrize("family", CONFIGS)
def test_a_saved_model_is_a_plain_model_with_equal_outputs(family, tmp_path):
    model = adapted_model(family, BACKWARDS[family][0]).to(dtype="float32")
    model.eval()
    batch = batch_for(family)
    paddle.seed(3)
    adapted_logits = model(**batch).logits.numpy()
    model.save_pretrained(tmp_path / "adapted")
    merge_adapter(model)
    model.save_pretrained(tmp_path / "merged")
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("adapted", "merged")]
    kind, keys, head = CONFIGS[family]
    assert files[0].keys() == part(family, "weights").parameters(kind(**keys), head).keys()
    for name, value in files[0].items():
        np.testing.assert_array_equal(files[1][name], value, err_msg=name)
    loaded_adapter_model = type(model).from_pretrained(tmp_path / "adapted")
    loaded_adapter_model.eval()
    for plain in (model, loaded_adapter_model):
        paddle.seed(3)
        np.testing.assert_allclose(
            plain(**batch).logits.numpy(), adapted_logits, rtol=2e-4, atol=2e-4 * np.abs(adapted_logits).max()
        )


def test_merging_and_saving_hold_only_one_weight_in_memory(tmp_path):
    """Check that NumPy holds one copy of a matrix and one sum at a time."""
    model = part("ctrl", "modeling").CLASSES["causal_lm"](
        CTRLConfig(**{**CTRL_TRIAL, "n_layer": 12, "n_embd": 128, "dff": 256})
    )
    add_adapter(model, adapter_for("ctrl"))
    sizes = [4 * int(np.prod(parameter.shape)) for parameter in model.parameters()]
    tracemalloc.start()
    try:
        merge_adapter(model)
        model.save_pretrained(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) > 40 * max(sizes) and peak < 10 * max(sizes), (sum(sizes), max(sizes), peak)


# -- a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted_run(recipe_file, run, tmp_path_factory) -> Path:  # noqa: F811
    """Return a run that adapts the model of another run."""
    return train(recipe_file, tmp_path_factory.mktemp("tuned") / "whole", *overrides(run))


def overrides(base: Path) -> list[str]:
    return [f"model.weights={base / 'model'}", "train.lora={rank: 4, dropout: 0.1}", "train.max_steps=10"]


def test_a_run_changes_only_adapted_weights_and_saves_a_plain_model(adapted_run, run):  # noqa: F811
    initial_weights, final_weights = (
        load_file(run / "model/model.safetensors"),
        load_file(adapted_run / "model/model.safetensors"),
    )
    assert initial_weights.keys() == final_weights.keys()
    changed_names = {name for name in initial_weights if not np.array_equal(initial_weights[name], final_weights[name])}
    adapted_suffixes = tuple(f".{target}.weight" for target in part("reformer", "weights").LORA_TARGETS)
    assert changed_names and all(name.endswith(adapted_suffixes) for name in changed_names)
    with safe_open(adapted_run / "adapter.safetensors", framework="np") as file:
        factors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        numbers = json.loads(file.metadata()["lora"])
        assert (numbers["rank"], numbers["alpha"]) == (4, 16.0)
    assert {name.rpartition(".lora_")[0] + ".weight" for name in factors} == changed_names
    for name in changed_names:
        path = name.removesuffix(".weight")
        update = 4.0 * factors[f"{path}.lora_B.weight"].astype("float64") @ factors[f"{path}.lora_A.weight"]
        np.testing.assert_array_equal(final_weights[name], (initial_weights[name] + update).astype("float32"))


def test_an_interrupted_run_resumes_bit_for_bit_from_the_adapter(
    adapted_run, recipe_file, run, tmp_path, monkeypatch  # noqa: F811
):  # fmt: skip
    folder, plain = tmp_path / "again", Finetuner.training_step

    def interrupt(self, *arguments, **options):
        if self.state.global_step == 7:
            raise KeyboardInterrupt
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Finetuner, "training_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(recipe_file, folder, *overrides(run))
    (checkpoint,) = folder.glob("checkpoints/step-*")
    assert all(".lora_" in name for name in load_file(checkpoint / "weights.safetensors"))
    assert all(".lora_" in name for name in load_file(checkpoint / "optimizer.safetensors"))
    monkeypatch.undo()
    train(recipe_file, folder, *overrides(run))
    assert_same_run(folder, adapted_run)
    assert (folder / "adapter.safetensors").read_bytes() == (adapted_run / "adapter.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "expected_error"),
    [
        ("targets", "[qeury]", "train.lora.targets: 'qeury': the model's layers have no such linear map; they"),
        ("targets", "[classifier.dense]", "train.lora.targets: 'classifier.dense': the model's layers have no"),
        ("targets", "[]", "train.lora.targets: []: list should have at least 1 item"),
        ("rank", "40", "train.lora.rank: 40 is no low rank for maps of width 32; set a smaller"),
        ("rank", "0", "train.lora.rank: 0: input should be greater than 0"),
        ("alpha", "-1", "train.lora.alpha: -1: input should be greater than 0"),
        ("dropout", "1.0", "train.lora.dropout: 1.0: input should be less than 1"),
        ("r", "8", "train.lora.r: unknown key"),
    ],
)
def test_a_mistake_is_reported_at_its_line(key, value, expected_error, recipe_file):  # noqa: F811
    from toolkit.finetune.model_config import check_model

    with pytest.raises(UserError) as problem:
        check_model(load_recipe(recipe_file, [f"train.lora.{key}={value}"]))
    assert expected_error in str(problem.value)


def test_a_missing_head_is_trained_and_its_random_weights_are_reported(recipe_file):  # noqa: F811
    from toolkit.finetune.assembly import assemble

    job = assemble(load_recipe(recipe_file, ["train.lora={rank: 2}"]))
    assert job.lora is not None and all(name.startswith("classifier.") for name in job.lora.whole) and job.lora.whole
    assert "random" in job.notes[-1]
    assert job.lora.targets == part("reformer", "weights").LORA_TARGETS


# -- the gate -------------------------------------------------------------------------------------------------------


def adapted_request(request: GateRequest, adapter: LoRA, constant: bool = False) -> GateRequest:
    """Return a request for the same model with an adapter; its B is zero if ``constant``."""
    table = part(request.model, "weights").parameters(
        part(request.model, "schema").resolve(request.config), request.head
    )
    weights: Mapping[str, np.ndarray] = {**dict(request.weights), **dict(lora.draw_adapter(table, adapter, 0))}
    if not constant:
        draw = np.random.default_rng(5)
        weights = {
            name: 0.1 * draw.standard_normal(value.shape, np.float32) if ".lora_B." in name else value
            for name, value in weights.items()
        }
    return replace(request, weights=weights, lora=asdict(adapter))


def gates_of() -> dict[str, GateRequest]:
    """Return requests of both families and dtypes, with recomputed layers or with a fully trained head."""
    ctrl = gates.request_for("ctrl", "causal_lm", CTRL_TRIAL, 48, port={"recompute": True})
    reformer = gates.reformer_request(gates.TINY_REFORMER, port={"backward": "reversible", "residual": "wide"})
    plain = replace(reformer, port={"backward": "reversible", "residual": "plain"}, dtypes=("float64",))
    head = ("classifier.dense.weight", "classifier.dense.bias")
    return {
        "ctrl": adapted_request(ctrl, adapter_for("ctrl"), constant=True),
        "reformer": adapted_request(reformer, adapter_for("reformer", whole=head), constant=True),
        "plain": adapted_request(plain, adapter_for("reformer"), constant=True),
    }


@pytest.fixture(scope="module")
def prepared_gates(tmp_path_factory):
    return gates.PreparedGates(tmp_path_factory.mktemp("jobs"), list(gates_of().values()))


@pytest.mark.slow
@pytest.mark.parametrize("name", gates_of())
def test_an_adapted_model_passes_the_gate(name, prepared_gates, tmp_path):
    request = gates_of()[name]
    report, output = prepared_gates.run(request, tmp_path)
    assert report.passed, output
    tensors = report.reference.tensors
    trained_names = {name for name in report.reference.parameters if LoRA.from_json(request.lora).is_trained(name)}
    gradients = {name.removeprefix("gradient:") for name in tensors if name.startswith("gradient:")}
    assert gradients == trained_names and len(trained_names) >= 8
    assert all(tensors[f"gradient:{name}"].rms > 0 for name in trained_names)
    assert any(name.startswith("merged:") for name in tensors)
    assert any(name.startswith("output:") and name.endswith("lora_B") for name in tensors)


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_an_adapted_model_passes_the_gate_with_paddles_own_kernels(family, monkeypatch, tmp_path):
    """Test frozen norms whose gains are not 1."""
    monkeypatch.setenv("TOOLKIT_KERNELS", "paddle")
    request = trial_request(family, "large-gains", 0, dtype="float32")
    report, output = gates.run(adapted_request(request, adapter_for(family)), tmp_path)
    assert report.passed, output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "names"),
    [("ctrl", [mutant.name for mutant in LORA]), ("reformer", ["lora-factors-swapped", "lora-merged-twice"])],
)
def test_the_faults_of_an_adapter_are_caught_and_named(model, names):
    """Test two of the ten faults; the others are caught likewise, also in Reformer."""
    request = adapted_request(trial_request(model, "random", 0), adapter_for(model))
    trials = try_mutants(request, gates.quiet(), names)
    assert [trial.mutant.name for trial in trials] == [mutant.name for mutant in LORA if mutant.name in names]
    assert [f"{trial.mutant.name}: {trial.verdict} {trial.culprit}" for trial in trials if not trial.passed] == []


@pytest.mark.slow
def test_an_adapted_model_that_goes_stage_by_stage_passes(tmp_path):
    config = {**CTRL_TRIAL, "n_layer": 1}
    request = gates.request_for("ctrl", "causal_lm", config, 48, streamed=True, dtypes=("float64",))
    report, output = gates.run(adapted_request(request, adapter_for("ctrl"), constant=True), tmp_path)
    assert report.passed, output
    layers = {name for name in report.reference.tensors if name.startswith("gradient:transformer.h.")}
    assert layers and all(".lora_" in name for name in layers)
