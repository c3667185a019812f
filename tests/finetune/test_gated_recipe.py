"""Test that every key of a recipe that affects the computation affects the gate: model, train, runtime and parity.

The keys of data and tokenizer decide the examples, labels and tokens; the gate gets the first of them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_train import recipe_file  # noqa: F401

from toolkit.finetune.assembly import assemble
from toolkit.finetune.gate import gate_request
from toolkit.parity.request.build import job_of, labels_of
from toolkit.recipe.keys import Model, Parity, Runtime, Train
from toolkit.recipe.load import load_recipe

#: Key -> an override with another value, and overrides that must change with it.
OTHER: dict[str, tuple[str, ...]] = {
    "model.config": ("model.config.hidden_dropout_prob=0.2",),
    "model.backward": ("model.backward=autograd",),
    "model.residual": ("model.residual=plain",),
    "train.epochs": ("train.epochs=3", "train.max_steps=null"),
    "train.max_steps": ("train.max_steps=41",),
    "train.batch_size": ("train.batch_size=5",),
    "train.gradient_accumulation_steps": ("train.gradient_accumulation_steps=1",),
    "train.learning_rate": ("train.learning_rate=2.0e-3",),
    "train.optimizer": ("train.optimizer=adafactor",),
    "train.weight_decay": ("train.weight_decay=0.02",),
    "train.adam_beta1": ("train.adam_beta1=0.8",),
    "train.adam_beta2": ("train.adam_beta2=0.98",),
    "train.adam_epsilon": ("train.adam_epsilon=1.0e-6",),
    "train.warmup_ratio": ("train.warmup_ratio=0.2",),
    "train.lr_scheduler": ("train.lr_scheduler=cosine",),
    "train.max_grad_norm": ("train.max_grad_norm=null",),
    "train.class_weights": ("train.class_weights={tools: 2}",),
    "train.label_smoothing": ("train.label_smoothing=0.1",),
    "train.token_dropout": ("train.token_dropout=0.1",),
    "train.precision": ("train.precision=bfloat16",),
    "train.sharding": ("train.sharding=stage1",),
    "train.lora": ("train.lora={rank: 2}",),
    "runtime.threads": ("runtime.threads=3",),
    "parity.dtype": ("parity.dtype=float64",),
    "parity.examples": ("parity.examples=3",),
    "parity.device": ("parity.device=gpu",),
    "parity.length": ("parity.length=64",),
    "parity.max_memory": ("parity.max_memory=3.5",),
}
#: Keys that need another fixture or family; each has a separate test below, or does not affect the gate.
ELSEWHERE = {
    "model.name": "tests below",
    "model.weights": "test_train.py: the request has the checkpoint's folder, and its weights",
    "model.revision": "test_hub.py: the revision's weights are read; the report says which commit they are of",
    "train.momentum": "test below",
    "train.recompute": "tests below",
    "runtime.device": "test below",
    "parity.reference_python": "test_train.py",
}
#: Keys that do not change the numbers of a step, an update or an evaluation.
NOT_COMPUTED = {
    "train.output_dir": "a folder",
    "train.eval_batch_size": "how many examples of an evaluation are computed at a time",
    "train.eval_steps": "when is evaluated",
    "train.early_stopping_patience": "when training ends",
    "train.save_best": "which weights are kept",
    "train.baseline": "what simple methods reach beside the model",
}
SECTIONS = {"model": Model, "train": Train, "runtime": Runtime, "parity": Parity}


def request_of(path: Path, overrides: tuple[str, ...], folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Return the whole request to the gate of a recipe, and the settings that the gate does not run."""
    recipe = load_recipe(path, overrides)
    request = gate_request(recipe, assemble(recipe), device, folder)
    inputs = {"batch": request.batch, "weights": request.weights, "labels": labels_of(request)}
    input_bytes = {
        kind: {name: np.asarray(v).tobytes() for name, v in several.items()} for kind, several in inputs.items()
    }
    job = asdict(job_of(request))
    job["tokenizer"].pop("path")  # the path of a scratch folder
    extent = {"length": request.length, "max_memory": request.max_memory}
    return {**job, **input_bytes, **extent, "not_run": request.not_run}


def test_every_key_is_tested_or_exempt():
    keys = {f"{section}.{key}" for section, fields in SECTIONS.items() for key in fields.model_fields}
    assert keys == OTHER.keys() | ELSEWHERE.keys() | NOT_COMPUTED.keys()


@pytest.fixture(scope="module")
def plain(recipe_file, tmp_path_factory):  # noqa: F811
    return request_of(recipe_file, (), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("key", OTHER)
def test_a_key_that_changes_the_computation_changes_the_request(key, plain, recipe_file, tmp_path):  # noqa: F811
    assert request_of(recipe_file, OTHER[key], tmp_path) != plain


def test_the_same_recipe_gives_the_same_request(plain, recipe_file, tmp_path):  # noqa: F811
    assert request_of(recipe_file, (), tmp_path) == plain
    assert request_of(recipe_file, (), tmp_path, "gpu") != plain


@pytest.mark.parametrize("key", ["rank=3", "alpha=4", "dropout=0.1", "targets=[value]"])
def test_every_key_of_an_adapter_reaches_the_gate(key, recipe_file, tmp_path):  # noqa: F811
    requests = [
        request_of(recipe_file, ("train.lora={rank: 2}", *more), tmp_path) for more in ((), (f"train.lora.{key}",))
    ]
    assert requests[0]["lora"] is not None and requests[0]["lora"] != requests[1]["lora"]


@pytest.mark.parametrize(
    "keys", [("sgd", "train.momentum=0.8"), ("lion", "train.adam_beta1=0.8"), ("lion", "train.adam_beta2=0.8")]
)
def test_an_optimizers_own_keys_reach_the_gate(keys, recipe_file, tmp_path):  # noqa: F811
    optimizer, *other_overrides = keys
    requests = [
        request_of(recipe_file, (f"train.optimizer={optimizer}", *more), tmp_path) for more in ((), other_overrides)
    ]
    assert requests[0]["training"]["optimizer"] == optimizer and requests[0] != requests[1]


def test_recomputed_layers_reach_the_gate(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Paragraph {n} says that {n} follows {n - 1}." for n in range(400)))
    recipe = tmp_path / "lm.yaml"
    recipe.write_text(
        "task: language_modeling\n"
        "model: {name: ctrl, config: {n_layer: 1, n_embd: 16, n_head: 2, dff: 16, n_positions: 32}}\n"
        "tokenizer: {kind: bpe, vocab_size: 300}\n"
        f"data: {{dataset: text, sources: {{A: {text}}}, max_length: 32, validation_fraction: 0.1}}\n"
        "train: {max_steps: 3, batch_size: 2, learning_rate: 1.0e-3}\n"
    )
    requests = [request_of(recipe, overrides, tmp_path) for overrides in ((), ("train.recompute=true",))]
    assert [request["model"] for request in requests] == ["ctrl", "ctrl"] and requests[0] != requests[1]
    assert [request["port"] for request in requests] == [{"recompute": False}, {"recompute": True}]
