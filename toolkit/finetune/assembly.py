"""Assemble the parts of a run from its recipe: examples, tokenizer, configuration and first weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models import collector, families
from models.port.lengths import Fit
from models.port.lora import LoRA, draw_adapter
from toolkit.errors import ToolkitError, UserError
from toolkit.finetune.identity import identity_of
from toolkit.finetune.label_rows import label_parameters, label_rows, relabeled_checkpoint
from toolkit.finetune.model_config import (
    build_config,
    fit_training_length,
    head_of,
    lora_of,
    trained_config,
)
from toolkit.machine.install import REFERENCE_PYTHON
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import weights_folder
from toolkit.tasks import task_of

if TYPE_CHECKING:
    from toolkit.tasks.interface import PreparedData, Task

#: Number of training texts for the gate's comparison of the tokenizers, and maximum number of characters of each. For a
#: million characters, both sides' ids, offsets and decoded texts took minutes; for 50 million, gigabytes.
GATE_TEXTS = 64
GATE_CHARACTERS = 2**17


@dataclass(frozen=True)
class AssembledRun:
    """All parts of a run, before anything is computed.

    Attributes:
        task: task of the recipe.
        tokenizer: tokenizer of the recipe.
        splits: rows of the examples, from the task's ``load_splits``.
        prepared_data: examples of all splits.
        fit: length that texts are padded to, and the part of the model that it uses.
        stored_config: configuration of the model that is read and saved.
        config: configuration of the model that trains, which may have fewer positions.
        weights: first weights of the model, in Hugging Face's names and layout, float32.
        lora: settings of the adapter; None if the weights themselves are trained.
        adapter: first values of the adapter; empty without an adapter.
        unreached_rows: rows of the stored position table that the trained model lacks; None if it has every row.
        new_weights: names of the weights that the checkpoint did not have; every name without a checkpoint.
        texts: texts of the training split, for the tokenizer's part of the gate.
        checkpoint: folder whose safetensors the first weights were read from; None for randomly initialized weights.
        identity: digests of everything that comes from files (:mod:`toolkit.finetune.identity`).
    """

    task: Task
    tokenizer: Any
    splits: Mapping[str, Any]
    prepared_data: PreparedData
    fit: Fit
    stored_config: Any
    config: Any
    weights: dict[str, np.ndarray]
    lora: LoRA | None
    adapter: dict[str, np.ndarray]
    unreached_rows: np.ndarray | None
    new_weights: list[str]
    texts: list[str]
    checkpoint: Path | None
    identity: dict[str, Any]

    @property
    def notes(self) -> list[str]:
        """Notes for the user on the data and the length."""
        notes = [*self.prepared_data.notes(), *self.fit.notes]
        if self.lora is not None:
            notes.append(self._describe_adapter())
        return notes

    def _describe_adapter(self) -> str:
        """Describe the trained adapter, and whether it adapts randomly initialized weights."""
        assert self.lora is not None
        text = f"train.lora: {self.num_trained:,} parameters are trained, of rank {self.lora.rank}"
        if self.lora.whole:
            text += f", among them the head's own ({', '.join(self.lora.whole)})"
        if len(self.new_weights) == len(self.weights):
            text += "; all others keep their new random values, since model.weights is not set"
        return text

    def free_initial_weights(self) -> None:
        """Free the values of the first weights, once a model has them. Names and shapes stay."""
        for weights in (self.weights, self.adapter):
            for name, value in weights.items():
                weights[name] = np.broadcast_to(np.float32(0), value.shape)

    @property
    def first_weights(self) -> dict[str, np.ndarray]:
        """All initial parameters of the model, including the adapter's."""
        return {**self.weights, **self.adapter}

    @property
    def num_trained(self) -> int:
        """Number of trained parameters."""
        if self.lora is None:
            return sum(int(value.size) for value in self.weights.values())
        return sum(int(value.size) for name, value in self.first_weights.items() if self.lora.is_trained(name))

    @property
    def parameters(self) -> int:
        """Number of the stored model's parameters."""
        num_unreached = 0 if self.unreached_rows is None else self.unreached_rows.size
        return sum(int(value.size) for value in self.weights.values()) + num_unreached


def assemble(recipe: Recipe) -> AssembledRun:
    """Load the data, the tokenizer, the configuration and the first weights.

    Raises:
        UserError: one of them does not fit the recipe; the error names the recipe's line.
    """
    with collector.pause_garbage_collection():
        from toolkit.data.load import build_tokenizer

    task = task_of(recipe)
    splits = task.load_splits(recipe)
    texts = task.texts(splits["train"])
    tokenizer = build_tokenizer(recipe, texts, task.control_codes(splits["train"]))
    fit = fit_training_length(recipe)
    prepared_data = task.prepare(recipe, tokenizer, splits, fit.length)
    stored_config = build_config(recipe, tokenizer, prepared_data.label_names)
    checkpoint = weights_folder(recipe)
    tensors, relabeled_names = _with_own_labels(
        recipe, stored_config, tensors_folder(recipe, checkpoint), prepared_data.label_names
    )
    weights, new_weights = first_weights(recipe, stored_config, tensors)
    new_weights = [name for name in weights if name in new_weights or name in relabeled_names]
    unreached_rows = None
    if fit.cut:
        positions = families.part(recipe.model.name, "positions")
        unreached_rows, weights = positions.unreached_rows(weights, fit.cut), positions.cut_weights(weights, fit.cut)
    parameter_table = families.part(recipe.model.name, "weights").parameters(stored_config, head_of(recipe))
    lora = lora_of(recipe, stored_config, new_weights)
    return AssembledRun(
        task=task,
        tokenizer=tokenizer,
        splits=splits,
        prepared_data=prepared_data,
        fit=fit,
        stored_config=stored_config,
        config=trained_config(stored_config, fit),
        weights=weights,
        lora=lora,
        adapter={} if lora is None else dict(draw_adapter(parameter_table, lora, recipe.seed)),
        unreached_rows=unreached_rows,
        new_weights=new_weights,
        texts=[text[:GATE_CHARACTERS] for text in texts[:GATE_TEXTS]],
        checkpoint=tensors,
        identity=identity_of(recipe, splits, tokenizer, checkpoint),
    )


def _with_own_labels(
    recipe: Recipe, config: Any, checkpoint: Path | None, label_names: Sequence[str] | None
) -> tuple[Path | None, list[str]]:
    """Return a checkpoint whose head has a row for each label of the data, and the names of its changed parameters.

    A checkpoint without such a head, or with one for the same labels, is returned as it is.
    """
    from models.files.hub import names_by_file

    if checkpoint is None or label_names is None:
        return checkpoint, []
    try:
        stored_names = {name for _, name in names_by_file(checkpoint)}
        head_names = label_parameters(families.part(recipe.model.name, "weights"), config, head_of(recipe))
        if stored_names.isdisjoint(head_names) or (rows := label_rows(recipe, label_names)) is None:
            return checkpoint, []
        return relabeled_checkpoint(recipe, config, checkpoint, rows), head_names
    except (OSError, ValueError) as error:
        raise recipe.error("model.weights", " ".join(str(error).split())) from None


def first_weights(recipe: Recipe, config: Any, checkpoint: Path | None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the stored model's first weights: from the checkpoint, and randomly initialized if it does not have them.

    Args:
        recipe: recipe of the run.
        config: configuration of the stored model (:func:`toolkit.finetune.model_config.build_config`).
        checkpoint: folder with safetensors; None to initialize all weights.

    Returns:
        Weights by name, float32 arrays in Hugging Face's layout, and the names of the initialized weights.
    """
    from models.files.hub import read_tensors

    weights, head = families.part(recipe.model.name, "weights"), head_of(recipe)
    if checkpoint is None:
        initial_weights = weights.initial_weights(config, head, recipe.seed)
        return initial_weights, list(initial_weights)
    initial = weights.initial_values(config, head, recipe.seed)
    try:
        checkpoint_weights = weights.select(read_tensors(checkpoint), config, head)
    except (OSError, ValueError) as error:
        raise recipe.error("model.weights", " ".join(str(error).split())) from None
    missing_names = [name for name in initial if name not in checkpoint_weights]
    values = {
        name: initial[name] if name in missing_names else np.asarray(checkpoint_weights[name], dtype=np.float32)
        for name in initial
    }
    return values, missing_names


def tensors_folder(recipe: Recipe, checkpoint: Path | None) -> Path | None:
    """Return the folder with the checkpoint's safetensors; the reference's process converts a pickle, once."""
    from models.files.hub import pickle_files
    from toolkit.parity import safetensors_folder

    if checkpoint is None:
        return None
    try:
        return safetensors_folder(checkpoint, reference_python(recipe)) if pickle_files(checkpoint) else checkpoint
    except (OSError, ValueError) as error:
        raise recipe.error("model.weights", " ".join(str(error).split())) from None


def reference_python(recipe: Recipe) -> str | None:
    """Return the absolute path of the interpreter that runs the reference; None for the current interpreter.

    The path is the recipe's, if the command line repeats it, or the environment's (:data:`.install.REFERENCE_PYTHON`).

    Raises:
        UserError: the path is not an interpreter.
        Inconclusive: the interpreter lacks a package that the reference needs.
    """
    from toolkit.parity import reference_interpreter

    if recipe.parity.reference_python is None:
        return _reference_from_environment()
    if not recipe.is_overridden("parity.reference_python"):
        raise recipe.error(
            "parity.reference_python",
            "names a program, which is not run because a file says so; say it yourself: toolkit finetune "
            f"{recipe.path} parity.reference_python={recipe.parity.reference_python}",
        )
    try:
        return reference_interpreter(str(recipe.resolve(recipe.parity.reference_python)))
    except UserError as error:
        raise recipe.error("parity.reference_python", str(error)) from None


def _reference_from_environment() -> str | None:
    """Return the Python of the reference that the environment variable names, or None if it is not set."""
    from toolkit.parity import reference_interpreter

    if not (interpreter := os.environ.get(REFERENCE_PYTHON)):
        return None
    try:
        return reference_interpreter(interpreter)
    except ToolkitError as error:
        raise type(error)(f"{REFERENCE_PYTHON}: {error}") from None
