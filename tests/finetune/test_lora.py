"""Low-rank adaptation: what is trained and what stays, its gate, its faults, its checkpoints, and what is saved."""

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
from toolkit.parity.mutants.shared import LORA
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import trial_request, try_mutants
from toolkit.recipe.load import load_recipe
from toolkit.training.trainer import Finetuner

CONFIGS = {
    "ctrl": (CTRLConfig, CTRL_TRIAL, "causal_lm"),
    "reformer": (ReformerConfig, REFORMER_TRIAL, "sequence_classification"),
}
#: By family, the settings that keep all activations, and those that compute layers again.
BACKWARDS = {"ctrl": (False, True), "reformer": ("autograd", "reversible")}


def adapter_for(family: str, **changes: Any) -> LoRA:
    adapted = tuple(part(family, "weights").LORA_TARGETS)
    return replace(LoRA(rank=4, alpha=6.0, dropout=0.1, targets=adapted), **changes)


def adapted_model(family: str, backward: Any, seed: int = 0) -> paddle.nn.Layer:
    """A port with an adapter whose B is not zero, in float64 without dropout."""
    kind, keys, head = CONFIGS[family]
    rates = {key: 0.0 for key in kind(**keys).to_hf() if key.endswith(("pdrop", "dropout_prob"))}
    given = {"backward": backward} if family == "reformer" else {}
    model = part(family, "modeling").CLASSES[head](kind(**{**keys, **rates, **given}))
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


def test_new_factors_are_as_large_as_their_inputs_ask_and_zero():
    """A x is then about as large as x, and B A x is 0."""
    table = {"layers.0.query.weight": Parameter((16, 4096), "linear"), "head.query.weight": Parameter((4, 4), "linear")}
    found = dict(draw_adapter(table, LoRA(rank=8, alpha=16.0, dropout=0.0, targets=("query",)), 3))
    first, second = (found[f"layers.0.query.lora_{factor}.weight"] for factor in "AB")
    assert len(found) == 2 and (first.shape, second.shape) == ((8, 4096), (16, 8))
    assert first.std() == pytest.approx(4096**-0.5, rel=0.02) and not second.any()
    assert not np.array_equal(first, dict(draw_adapter(table, LoRA(8, 16.0, 0.0, ("query",)), 4))[next(iter(found))])


@pytest.mark.parametrize("bias", [True, False])
def test_a_map_gives_what_the_paper_says_and_leaves_its_weight_alone(bias):
    base = Linear(5, 3, bias_attr=None if bias else False)
    weight = base.weight.numpy()
    layer = LoRALinear(base, LoRA(2, 6.0, 0.0, ("x",)))
    layer.lora_B.weight.set_value(np.random.default_rng(0).standard_normal((2, 3)).astype("float32"))
    for parameter in (layer.weight, layer.bias) if bias else (layer.weight,):
        parameter.stop_gradient = True
    x = paddle.to_tensor(np.random.default_rng(1).standard_normal((4, 5)).astype("float32"), stop_gradient=False)
    output = layer(x)
    first, second = layer.lora_A.weight.numpy(), layer.lora_B.weight.numpy()
    added = layer.bias.numpy() if bias else 0.0
    np.testing.assert_allclose(
        output.numpy(), x.numpy() @ (weight + 3.0 * first @ second) + added, rtol=1e-5, atol=1e-6
    )
    output.sum().backward()
    assert layer.weight.grad is None and x.grad is not None
    assert layer.lora_A.weight.grad is not None and layer.lora_B.weight.grad is not None


def test_operations_of_the_port_give_no_gradient_to_what_is_frozen():
    x = paddle.to_tensor(np.ones((2, 3), "float32"), stop_gradient=False)
    bias, norm = paddle.zeros([3]), LayerNorm(3)
    for parameter in norm.parameters():
        parameter.stop_gradient = True
    norm(add_bias(x, bias) * x).sum().backward()
    assert x.grad is not None and bias.grad is None and norm.weight.grad is None


# -- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CONFIGS)
def test_layers_that_are_computed_again_have_the_gradients_of_plain_autograd(family):
    """The embeddings are frozen, so that nothing that goes into the first layer wants a gradient."""
    found = []
    for backward in BACKWARDS[family]:
        model = adapted_model(family, backward)
        model.train()
        paddle.seed(3)  # rotations
        model(**batch_for(family)).loss.backward()
        found.append({n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None})
    plain, again = found
    factors = lora.adapter_parameters(model.parameter_table, model.adapter)
    assert plain.keys() == again.keys() == factors.keys() and len(plain) >= 8
    for name, gradient in plain.items():
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(again[name], gradient, rtol=1e-9, atol=1e-12 * np.abs(gradient).max(), err_msg=name)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_saved_model_is_a_plain_one_that_computes_the_same(family, tmp_path):
    model = adapted_model(family, BACKWARDS[family][0]).to(dtype="float32")
    model.eval()
    batch = batch_for(family)
    paddle.seed(3)
    before = model(**batch).logits.numpy()
    model.save_pretrained(tmp_path / "adapted")
    merge_adapter(model)
    model.save_pretrained(tmp_path / "merged")
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("adapted", "merged")]
    kind, keys, head = CONFIGS[family]
    assert files[0].keys() == part(family, "weights").parameters(kind(**keys), head).keys()
    for name, value in files[0].items():
        np.testing.assert_array_equal(files[1][name], value, err_msg=name)
    again = type(model).from_pretrained(tmp_path / "adapted")
    again.eval()
    for plain in (model, again):
        paddle.seed(3)
        np.testing.assert_allclose(plain(**batch).logits.numpy(), before, rtol=2e-4, atol=2e-4 * np.abs(before).max())


def test_merging_and_saving_hold_one_weight_at_a_time(tmp_path):
    """Of what NumPy is given: a copy of a matrix, and what it is added up in."""
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
def tuned(recipe_file, run, tmp_path_factory) -> Path:  # noqa: F811
    """A run that adapts the model of another."""
    return train(recipe_file, tmp_path_factory.mktemp("tuned") / "whole", *overrides(run))


def overrides(base: Path) -> list[str]:
    return [f"model.weights={base / 'model'}", "train.lora={rank: 4, dropout: 0.1}", "train.max_steps=10"]


def test_a_run_changes_what_it_adapts_alone_and_leaves_a_plain_model(tuned, run):  # noqa: F811
    before, after = load_file(run / "model/model.safetensors"), load_file(tuned / "model/model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    ends = tuple(f".{target}.weight" for target in part("reformer", "weights").LORA_TARGETS)
    assert changed and all(name.endswith(ends) for name in changed)
    with safe_open(tuned / "adapter.safetensors", framework="np") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        numbers = json.loads(file.metadata()["lora"])
        assert (numbers["rank"], numbers["alpha"]) == (4, 16.0)
    assert {name.rpartition(".lora_")[0] + ".weight" for name in kept} == changed
    for name in changed:
        path = name.removesuffix(".weight")
        update = 4.0 * kept[f"{path}.lora_B.weight"].astype("float64") @ kept[f"{path}.lora_A.weight"]
        np.testing.assert_array_equal(after[name], (before[name] + update).astype("float32"))


def test_an_interrupted_run_goes_on_bit_for_bit_from_the_adapter_alone(
    tuned, recipe_file, run, tmp_path, monkeypatch  # noqa: F811
):  # fmt: skip
    folder, plain = tmp_path / "again", Finetuner.training_step

    def interrupted(self, *arguments, **options):
        if self.state.global_step == 7:
            raise KeyboardInterrupt
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Finetuner, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(recipe_file, folder, *overrides(run))
    (saved,) = folder.glob("checkpoints/step-*")
    assert all(".lora_" in name for name in load_file(saved / "weights.safetensors"))
    assert all(".lora_" in name for name in load_file(saved / "optimizer.safetensors"))
    monkeypatch.undo()
    train(recipe_file, folder, *overrides(run))
    assert_same_run(folder, tuned)
    assert (folder / "adapter.safetensors").read_bytes() == (tuned / "adapter.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "said"),
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
def test_a_mistake_is_said_at_its_line(key, value, said, recipe_file):  # noqa: F811
    from toolkit.finetune.model_config import check_model

    with pytest.raises(UserError) as problem:
        check_model(load_recipe(recipe_file, [f"train.lora.{key}={value}"]))
    assert said in str(problem.value)


def test_a_head_that_the_checkpoint_lacks_is_trained_and_new_weights_are_said_to_be_random(recipe_file):  # noqa: F811
    from toolkit.finetune.assembly import assemble

    job = assemble(load_recipe(recipe_file, ["train.lora={rank: 2}"]))
    assert job.lora is not None and all(name.startswith("classifier.") for name in job.lora.whole) and job.lora.whole
    assert "random" in job.notes[-1]
    assert job.lora.targets == part("reformer", "weights").LORA_TARGETS


# -- the gate -------------------------------------------------------------------------------------------------------


def adapted_request(request: GateRequest, adapter: LoRA, constant: bool = False) -> GateRequest:
    """A request for the same model with an adapter, whose B is zero where ``constant``."""
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
    """Both families, both dtypes; layers that are computed again; a head that is trained as it is."""
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
def prepared(tmp_path_factory):
    return gates.PreparedGates(tmp_path_factory.mktemp("jobs"), list(gates_of().values()))


@pytest.mark.slow
@pytest.mark.parametrize("name", gates_of())
def test_an_adapted_model_passes_the_gate(name, prepared, tmp_path):
    request = gates_of()[name]
    report, said = prepared.run(request, tmp_path)
    assert report.passed, said
    tensors = report.reference.tensors
    trained = {one for one in report.reference.parameters if LoRA.from_json(request.lora).is_trained(one)}
    gradients = {one.removeprefix("gradient:") for one in tensors if one.startswith("gradient:")}
    assert gradients == trained and len(trained) >= 8
    assert all(tensors[f"gradient:{one}"].rms > 0 for one in trained)
    assert any(one.startswith("merged:") for one in tensors)
    assert any(one.startswith("output:") and one.endswith("lora_B") for one in tensors)


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_an_adapted_model_passes_the_gate_with_paddles_own_kernels(family, monkeypatch, tmp_path):
    """Its norms are frozen, with gains that are not 1."""
    monkeypatch.setenv("TOOLKIT_KERNELS", "paddle")
    request = trial_request(family, "large-gains", 0, dtype="float32")
    report, said = gates.run(adapted_request(request, adapter_for(family)), tmp_path)
    assert report.passed, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "names"),
    [("ctrl", [mutant.name for mutant in LORA]), ("reformer", ["lora-factors-swapped", "lora-merged-twice"])],
)
def test_the_faults_of_an_adapter_are_caught_and_named(model, names):
    """All ten were, of Reformer too; two of them are enough here."""
    request = adapted_request(trial_request(model, "random", 0), adapter_for(model))
    trials = try_mutants(request, gates.quiet(), names)
    assert [trial.mutant.name for trial in trials] == [mutant.name for mutant in LORA if mutant.name in names]
    assert [f"{trial.mutant.name}: {trial.verdict} {trial.culprit}" for trial in trials if not trial.passed] == []


@pytest.mark.slow
def test_an_adapted_model_that_goes_stage_by_stage_passes(tmp_path):
    config = {**CTRL_TRIAL, "n_layer": 1}
    request = gates.request_for("ctrl", "causal_lm", config, 48, streamed=True, dtypes=("float64",))
    report, said = gates.run(adapted_request(request, adapter_for("ctrl"), constant=True), tmp_path)
    assert report.passed, said
    layers = {name for name in report.reference.tensors if name.startswith("gradient:transformer.h.")}
    assert layers and all(".lora_" in name for name in layers)
