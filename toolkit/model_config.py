"""From a recipe's model section to the configuration of the port, with every mistake at its line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.reformer import schema
from toolkit.recipe import Recipe

if TYPE_CHECKING:
    from models.reformer.config import ReformerConfig
    from models.reformer.tokenizer import Tokenizer

#: Keys that the data and the task decide, so that a recipe must not.
FROM_THE_DATA = ("num_labels", "id2label", "label2id", "problem_type")


def build_config(recipe: Recipe, tokenizer: Tokenizer, label_names: Sequence[str]) -> ReformerConfig:
    """The configuration to train with: the checkpoint's if there is one, under the recipe's keys, for these labels.

    Imports Paddle; :func:`toolkit.runtime.configure` comes first.

    Raises:
        UserError: as :func:`check_model`; also where the checkpoint cannot be had or its vocabulary is too small.
    """
    from models.reformer.config import ReformerConfig

    keys = resolve(recipe, _checkpoint_keys(recipe), tokenizer, label_names)
    return ReformerConfig(backward=recipe.model.backward, residual=recipe.model.residual, **keys)


def check_model(recipe: Recipe) -> list[str]:
    """Check the model section without data, Paddle or network.

    Returns:
        What could not be checked, as notes to show.

    Raises:
        UserError: an unknown key, a wrong value, or a length that the model cannot be trained on, at its line.
    """
    stored = _local_checkpoint_keys(recipe)
    if stored is None:
        _check_keys(recipe, recipe.model.config)
        return [
            f"model.weights: {recipe.model.weights} is not on this machine; it is fetched and checked when a run starts"
        ]
    resolve(recipe, stored)
    return []


def resolve(
    recipe: Recipe,
    stored: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
    label_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The Hugging Face keys of the model, checked against each other and against ``data.max_length``.

    Args:
        stored: the keys of the checkpoint; empty for new weights.
        tokenizer: sets the vocabulary's size unless the recipe or the checkpoint does.
        label_names: the labels, in the order of their ids.
    """
    _check_keys(recipe, recipe.model.config)
    keys = {key: value for key, value in {**stored, **recipe.model.config}.items() if key not in FROM_THE_DATA}
    if label_names is not None:
        keys["id2label"] = dict(enumerate(label_names))
        keys["label2id"] = {name: index for index, name in enumerate(label_names)}
    if tokenizer is not None:
        keys.setdefault("pad_token_id", tokenizer.pad_token_id)
        if keys.setdefault("vocab_size", tokenizer.vocab_size) < tokenizer.vocab_size:
            raise recipe.error(
                "model.config.vocab_size" if "vocab_size" in recipe.model.config else "model.weights",
                f"a vocabulary of {keys['vocab_size']} is too small for the tokenizer's {tokenizer.vocab_size} ids",
            )
    config = _resolved(recipe, keys)
    if config["is_decoder"]:
        raise recipe.error(
            "model.config.is_decoder",
            "the classification head reads the first position, which sees nothing else in a causal model; set false",
        )
    _check_length(recipe, config)
    return keys


def _check_keys(recipe: Recipe, keys: Mapping[str, Any]) -> None:
    for key in keys:
        if key in FROM_THE_DATA:
            raise recipe.error(("model", "config", key), "follows from the data and the task; leave it away")
        if key not in schema.DEFAULTS and key not in schema.ONLY and key not in schema.INERT:
            _resolved(recipe, {key: keys[key]})


def _resolved(recipe: Recipe, keys: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return schema.resolve(keys)
    except schema.ConfigError as problem:
        at = ("model", "config", problem.key)
        if problem.key in keys and problem.key not in recipe.model.config and recipe.model.weights:
            raise recipe.error("model.weights", f"the checkpoint's config.json: {problem}") from None
        raise recipe.error(at, problem.message) from None


def _check_length(recipe: Recipe, config: Mapping[str, Any]) -> None:
    """Training pads every text to ``data.max_length``, so that must be a length the model can be trained on."""
    length, shape = recipe.data.max_length, config["axial_pos_shape"]
    if config["axial_pos_embds"] and (product := math.prod(shape)) != length:
        raise recipe.error(
            "data.max_length",
            f"{length} does not equal the product of model.config.axial_pos_shape {shape} = {product}; "
            f"set max_length: {product}" + _other_shape(recipe, length),
        )
    try:
        schema.check_training_length(config, length)
    except schema.ConfigError as problem:
        raise recipe.error("data.max_length", f"{length}: model.config.{problem.key}: {problem.message}") from None


def _other_shape(recipe: Recipe, length: int) -> str:
    """The other way out: a shape that fits the length. A checkpoint's shape is that of its weights, and stays."""
    if recipe.model.weights:
        return ""
    small = next(factor for factor in range(math.isqrt(length), 0, -1) if length % factor == 0)
    return f", or axial_pos_shape: [{small}, {length // small}]" if small > 1 else ""


def _checkpoint_keys(recipe: Recipe) -> dict[str, Any]:
    """The ``config.json`` of ``model.weights``, downloaded if need be; nothing for new weights."""
    from models.hub import resolve_folder

    if recipe.model.weights is None:
        return {}
    try:
        return _read(recipe, resolve_folder(recipe.resolve(recipe.model.weights)) / "config.json")
    except FileNotFoundError as problem:
        raise recipe.error("model.weights", " ".join(str(problem).split())) from None


def _local_checkpoint_keys(recipe: Recipe) -> dict[str, Any] | None:
    """As :func:`_checkpoint_keys`, from this machine alone; None for a hub repository that is not in its cache."""
    weights = recipe.model.weights
    if weights is None:
        return {}
    folder = recipe.resolve(weights)
    if folder.is_dir():
        return _read(recipe, folder / "config.json")
    if weights.startswith((".", "/", "~")) or weights.count("/") != 1:
        raise recipe.error("model.weights", f"{weights} is neither a folder nor a hub repository (owner/name)")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(weights, "config.json")
    except HFValidationError:
        raise recipe.error("model.weights", f"{weights} is no name of a hub repository (owner/name)") from None
    return _read(recipe, Path(cached)) if isinstance(cached, str) else None


def _read(recipe: Recipe, path: Path) -> dict[str, Any]:
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise recipe.error("model.weights", f"{path.parent} holds no config.json") from None
    except ValueError:
        raise recipe.error("model.weights", f"{path} is not JSON") from None
    if not isinstance(keys, dict) or keys.get("model_type", "reformer") != "reformer":
        raise recipe.error("model.weights", f"{path} does not describe a Reformer")
    return keys
