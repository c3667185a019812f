"""Fit the head of a checkpoint to the labels of the data: reuse its rows by label, and add rows for new labels."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models import families
from models.files.hub import read_tensors, tensor_files
from models.files.plain import read_object
from models.files.tensor_file import write_tensors
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.files.whole import write_text
from toolkit.finetune.model_config import checkpoint_keys, head_of
from toolkit.recipe.recipe import Recipe


def names_of(id2label: Mapping[Any, str] | None) -> list[str] | None:
    """Return the labels of a configuration in the order of their ids; None if it names none, as ``LABEL_0`` does not.

    Args:
        id2label: as ``config.json`` or a configuration has it.
    """
    names = [str(name) for _, name in sorted((int(index), name) for index, name in (id2label or {}).items())]
    return None if not names or names == [f"LABEL_{index}" for index in range(len(names))] else names


def label_parameters(weights_module: Any, config: Any, head: str) -> list[str]:
    """Return the names of a head's parameters that have a row for each label.

    Args:
        weights_module: the family's module of weights.
        config: configuration of the model.
        head: head of the model, such as ``sequence_classification``.
    """
    own = weights_module.parameters(config, head)
    wider = weights_module.parameters(ChainMap({"num_labels": config["num_labels"] + 1}, config), head)
    return [name for name, parameter in own.items() if wider[name].shape != parameter.shape]


def relabeled_checkpoint(recipe: Recipe, config: Any, checkpoint: Path, rows: Sequence[int | None]) -> Path:
    """Return a folder of the cache with a checkpoint whose head has the rows of other labels.

    Both sides of the parity gate read it, so that their loaders are compared on what trains.

    Args:
        recipe: recipe of the run.
        config: configuration of the model for the labels of the data.
        checkpoint: folder with safetensors.
        rows: for each label of the data, its row in the checkpoint; None for a new label, which gets new values.

    Raises:
        OSError, ValueError: the checkpoint cannot be read.
    """
    weights, head = families.part(recipe.model.name, "weights"), head_of(recipe)
    initial = weights.initial_values(config, head, recipe.seed)
    head_names = label_parameters(weights, config, head)
    keys = {**read_object(checkpoint / "config.json"), **{key: config.to_hf()[key] for key in ("id2label", "label2id")}}
    keys.pop("num_labels", None)
    files = tensor_files(checkpoint)
    tensors = dict(read_tensors(checkpoint))
    for name in head_names:
        if name in tensors:
            tensors[name] = _with_rows(tensors[name], np.array(initial[name], dtype=np.float32), rows)

    def fill(folder: Path) -> None:
        write_text(folder / "config.json", json.dumps(keys, indent=1) + "\n")
        write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})

    key = digest_parts(*map(file_sha256, files), json.dumps(keys), json.dumps(list(rows)), recipe.seed, CACHE_VERSION)
    return get_or_create_entry("weights", key, fill)


def _with_rows(checkpoint_values: np.ndarray, own: np.ndarray, rows: Sequence[int | None]) -> np.ndarray:
    """Return ``own`` with the named rows of ``checkpoint_values``."""
    for place, row in enumerate(rows):
        if row is not None and row < len(checkpoint_values) and checkpoint_values.shape[1:] == own.shape[1:]:
            own[place] = checkpoint_values[row]
    return own


def label_rows(recipe: Recipe, names: Sequence[str]) -> list[int | None] | None:
    """Return the row in the checkpoint's head of each label; None if the head fits as it is.

    The change of the head is noted. A run that continues another begins with a new optimizer if the head changes,
    since the moments are of the former rows.

    Args:
        recipe: recipe of the run.
        names: labels of the data, in the order of their ids.
    """
    keys, continues = checkpoint_keys(recipe), recipe.findings.continues
    stored_labels = names_of(keys.get("id2label"))
    count = len(keys.get("id2label") or ()) or keys.get("num_labels", 2)
    if list(names) == stored_labels or (stored_labels is None and count == len(names)):
        return None
    if stored_labels is not None and count == len(names) and not continues and not set(stored_labels) & set(names):
        return None  # a checkpoint for another task with as many labels: its head is one to start from
    rows_by_label = {name: row for row, name in enumerate(stored_labels or ())}
    new_labels = [name for name in names if name not in rows_by_label]
    removed_labels = [name for name in rows_by_label if name not in names]
    head_change = (
        f"the head keeps its rows of {len(names) - len(new_labels)} labels"
        if len(new_labels) < len(names)
        else "the head is new"
    )
    note_parts = [
        head_change,
        "the body is kept",
        *_describe_labels("new labels", new_labels),
        *_describe_labels("left out", removed_labels),
    ]
    if continues.get("optimizer"):
        note_parts.append("the optimizer is new after all")
        continues["optimizer"] = None
    origin = continues.get("run", recipe.model.weights)
    recipe.findings.note(f"the labels are not those of {origin}: {'; '.join(note_parts)}")
    return [rows_by_label.get(name) for name in names]


def _describe_labels(description: str, names: Sequence[str]) -> list[str]:
    """Return one part of a note, ``DESCRIPTION: the first five names``; an empty list without names."""
    return [f"{description}: {', '.join(names[:5])}{', ...' * (len(names) > 5)}"] if names else []
