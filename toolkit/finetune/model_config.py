"""Make the port's configuration from a recipe's model section, with every mistake at its line."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from models import families
from models.files.plain import read_object
from models.port.lengths import LENGTH, Fit, LengthError
from models.port.lora import LAYER_PREFIX, LoRA, linear_layers
from toolkit.machine import runtime
from toolkit.machine.model_memory import GRADIENT_BYTES, MOMENT_BYTES, WEIGHT_BYTES, explain_too_large
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import weights_folder
from toolkit.tasks import task_of

#: Keys that follow from data and task: a recipe must not set them.
FROM_THE_DATA = ("num_labels", "id2label", "label2id", "problem_type")

#: The reference's names of ``data.problem_type``. One label is left open: integer labels tell it that.
PROBLEM_TYPES = {"multi_label": "multi_label_classification", "regression": "regression"}


def head_of(recipe: Recipe) -> str:
    """The head that the recipe's task puts on its model, one of ``CLASSES`` of the family's modeling."""
    return task_of(recipe).HEAD


def model_class(recipe: Recipe) -> Any:
    """The port's class for the recipe's model and task. Imports Paddle."""
    return families.part(recipe.model.name, "modeling").CLASSES[head_of(recipe)]


def port_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the port that do not belong to the model.

    A backward that is not resolved yet (:mod:`toolkit.finetune.backward`) is left out: a model that does not train
    needs none.
    """
    settings = {key: getattr(recipe.model, key) for key in families.family(recipe.model.name).settings}
    return {key: value for key, value in settings.items() if value not in (None, "auto")}


def build_config(recipe: Recipe, tokenizer: Any, label_names: Sequence[str] | None) -> Any:
    """Return the configuration of the stored model for these labels: the checkpoint's, changed by the recipe's keys.

    The model that trains has :func:`trained_config`. This function imports Paddle, so call
    :func:`toolkit.machine.runtime.configure_paddle` first.

    Raises:
        UserError: as :func:`check_model`; also where the checkpoint is unavailable or its vocabulary is too small.
    """
    checkpoint_config = checkpoint_keys(recipe)
    keys = resolve(recipe, checkpoint_config, tokenizer, label_names)
    if problem := _too_large(recipe, keys, on_gpu=runtime.current_device() == "gpu"):
        raise recipe.error("model.config", problem)
    lora_of(recipe, _resolve_config(recipe, keys))
    return model_class(recipe).config_class(**port_settings(recipe), **keys)


def trained_config(config: Any, fit: Fit) -> Any:
    """Return the configuration of the model that trains, with no more positions than texts have.

    Args:
        config: configuration from :func:`build_config`.
        fit: length of texts, and the part of the model that it uses.
    """
    if not fit.cut:
        return config
    training_config = copy.copy(config)
    for key, value in fit.cut.items():
        setattr(training_config, key, value)
    return training_config


def fit_training_length(recipe: Recipe) -> Fit:
    """Return the length that the recipe's texts are padded to, and the part of the model that it uses.

    Raises:
        UserError: the same errors as in :func:`build_config`.
    """
    checkpoint_config = checkpoint_keys(recipe)
    return _fit(recipe, _resolve_config(recipe, resolve(recipe, checkpoint_config)))


def length_of(recipe: Recipe, config: Any) -> int:
    """Return the length that the texts of a finished run are padded to, by its model's configuration.

    Raises:
        ConfigError: this recipe trained no model of this configuration.
    """
    return families.part(recipe.model.name, "lengths").fit(vars(config), recipe.data.max_length).length


def check_model(recipe: Recipe) -> list[str]:
    """Check the model section without data, Paddle or network, and return notes.

    The notes are on values that could not be checked, and on how texts of ``data.max_length`` fit the model.

    Raises:
        UserError: a key is unknown, a value is wrong, or the model cannot be trained on texts of this length; the error
            names the line.
    """
    checkpoint_config = _local_checkpoint_keys(recipe)
    if checkpoint_config is None:
        _check_keys(recipe, recipe.model.config)
        return [
            f"model.weights: {recipe.model.weights} is not on this machine; it is fetched and checked when a run starts"
        ]
    keys = resolve(recipe, checkpoint_config)
    lora_of(recipe, _resolve_config(recipe, keys))
    fit, problem = _fit(recipe, _resolve_config(recipe, keys)), _too_large(recipe, keys)
    return [*fit.notes, *([f"model.config: {problem}"] if problem else [])]


def lora_of(recipe: Recipe, config: Mapping[str, Any], new_weights: Collection[str] = ()) -> LoRA | None:
    """Return the LoRA of the recipe for a resolved configuration; None if it trains the weights themselves.

    Args:
        recipe: recipe of the run.
        config: resolved configuration.
        new_weights: parameters that the checkpoint lacks; those in the head are trained.

    Raises:
        UserError: a target does not fit any linear map of the model's layers, or a rank is not low.
    """
    settings = recipe.train.lora
    if settings is None:
        return None
    weights, head = families.part(recipe.model.name, "weights"), head_of(recipe)
    table = weights.parameters(config, head)
    linear_maps = linear_layers(table)
    map_names = list(dict.fromkeys(LAYER_PREFIX.split(name)[-1] for name in linear_maps))
    targets = tuple(
        target for target in settings.targets or () if any(f".{end}".endswith(f".{target}") for end in map_names)
    )
    unknown_targets = [target for target in settings.targets or () if target not in (*targets, *weights.LORA_TARGETS)]
    if unknown_targets or not targets:
        explanation = f"the model's layers have no such linear map; they have {', '.join(map_names)}"
        raise recipe.error(
            "train.lora.targets", f"{', '.join(map(repr, unknown_targets or settings.targets or ()))}: {explanation}"
        )
    lora = LoRA(settings.rank, settings.alpha, settings.dropout, targets)
    max_rank = min(min(parameter.shape) for name, parameter in linear_maps.items() if lora.is_target(name))
    if settings.rank > max_rank:
        raise recipe.error(
            "train.lora.rank", f"{settings.rank} is no low rank for maps of width {max_rank}; set a smaller"
        )
    body = next(iter(table)).split(".")[0]  # of the embedding, which comes first
    return replace(lora, whole=tuple(name for name in new_weights if not name.startswith(f"{body}.")))


def known_model(recipe: Recipe) -> tuple[dict[str, Any], int] | None:
    """Return the resolved configuration and length of the model that trains, as far as the recipe sets them.

    A vocabulary whose size depends on the data has the default size.

    Returns:
        The configuration and the length in tokens; None if the checkpoint is not on this machine.
    """
    checkpoint_config = _local_checkpoint_keys(recipe)
    if checkpoint_config is None:
        return None
    keys = resolve(recipe, checkpoint_config)
    if recipe.tokenizer.vocab_size is not None:
        keys = {"vocab_size": recipe.tokenizer.vocab_size, **keys}
    config = _resolve_config(recipe, keys)
    fit = _fit(recipe, config)
    return {**config, **fit.cut}, fit.length


def _too_large(recipe: Recipe, keys: Mapping[str, Any], *, on_gpu: bool = False) -> str | None:
    """Return the reason why the model does not fit the memory, or None if it fits.

    Args:
        recipe: recipe of the run.
        keys: keys of the model configuration.
        on_gpu: whether the model is trained on a GPU, so that the main memory only holds the weights.
    """
    # Without gradients and moments there are only the weights, once as read and once in the model.
    trained_bytes = WEIGHT_BYTES + GRADIENT_BYTES + MOMENT_BYTES[recipe.train.optimizer]
    texts, each = (0, WEIGHT_BYTES) if on_gpu else (1, 2 * WEIGHT_BYTES if recipe.train.lora else trained_bytes)
    config = _resolve_config(recipe, keys)
    return explain_too_large(recipe.model.name, config, head_of(recipe), _fit(recipe, config).length, texts, each)


def resolve(
    recipe: Recipe, stored_config: Mapping[str, Any], tokenizer: Any = None, label_names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the complete Hugging Face configuration of the stored model, checked against ``data.max_length``.

    Args:
        recipe: recipe of the run, whose keys override the checkpoint's keys.
        stored_config: configuration of the checkpoint; empty for randomly initialized weights.
        tokenizer: tokenizer that determines the size of the vocabulary if neither the recipe nor the checkpoint does;
            None if it is not known yet.
        label_names: names of the labels, in the order of the ids; None without labels or if they are not known yet.
    """
    _check_keys(recipe, recipe.model.config)
    keys = {key: value for key, value in {**stored_config, **recipe.model.config}.items() if key not in FROM_THE_DATA}
    if label_names is not None:
        keys["id2label"] = dict(enumerate(label_names))
        keys["label2id"] = {name: index for index, name in enumerate(label_names)}
        if (problem_type := PROBLEM_TYPES.get(recipe.data.problem_type or "")) is not None:
            keys["problem_type"] = problem_type
    if tokenizer is not None:
        keys.setdefault("pad_token_id", tokenizer.pad_token_id)
        if recipe.train.token_dropout and keys["pad_token_id"] is None:
            raise recipe.error("train.token_dropout", "needs a pad token; remove model.config.pad_token_id, or set it")
        if keys.setdefault("vocab_size", tokenizer.vocab_size) < tokenizer.vocab_size:
            raise recipe.error(
                "model.config.vocab_size" if "vocab_size" in recipe.model.config else "model.weights",
                f"a vocabulary of {keys['vocab_size']} is too small for the tokenizer's {tokenizer.vocab_size} ids",
            )
    config = _resolve_config(recipe, keys)
    _check_table(recipe, stored_config)
    _check_direction(recipe, config)
    return {**keys, **_fit(recipe, config).keys}


def _fit(recipe: Recipe, config: Mapping[str, Any]) -> Fit:
    """Return the length that the model trains on, and the configuration that suits this length.

    For randomly initialized weights, keys that the recipe does not set, such as the position table's shape, are chosen.

    Args:
        recipe: recipe of the run, with ``data.max_length``.
        config: resolved configuration.
    """
    lengths, max_length = families.part(recipe.model.name, "lengths"), recipe.data.max_length
    try:
        return lengths.fit(config, max_length, None if recipe.model.weights else recipe.model.config)
    except LengthError as problem:
        advice = problem.advice({LENGTH: "data.max_length"}, "model.config.")
        raise recipe.error("data.max_length", f"{max_length}: model.config.{problem.key}: {advice}") from None


def _check_table(recipe: Recipe, stored_config: Mapping[str, Any]) -> None:
    """Reject another shape than the checkpoint's for a stored position table.

    The rows that are trained depend on ``data.max_length``.

    Args:
        recipe: recipe of the run.
        stored_config: configuration of the checkpoint; empty for randomly initialized weights.
    """
    key = families.family(recipe.model.name).table_key
    shape = recipe.model.config.get(key)
    stored_shape = {**families.part(recipe.model.name, "schema").DEFAULTS, **stored_config}.get(key)
    if stored_config and shape not in (None, stored_shape):
        message = (
            f"{shape} is not the checkpoint's {stored_shape}; remove it: of a longer table, the first rows are trained"
        )
        raise recipe.error(f"model.config.{key}", message)


def _check_direction(recipe: Recipe, config: Mapping[str, Any]) -> None:
    """Check that a language model sees no later token, and any other head does; some families have no key."""
    causal = head_of(recipe) == "causal_lm"
    key = families.family(recipe.model.name).causal_key
    if config.get(key, causal) == causal:
        return
    why = (
        "a language model must not see the words that it predicts; set true"
        if causal
        else "the classification head reads the first position, which sees nothing else in a causal model; set false"
        if head_of(recipe) == "sequence_classification"
        else f"{recipe.task} needs each position to see the whole text; set false"
    )
    raise recipe.error(f"model.config.{key}", why)


def _check_keys(recipe: Recipe, keys: Mapping[str, Any]) -> None:
    """Check that each key of ``model.config`` is a key of the family that a recipe may set."""
    schema = families.part(recipe.model.name, "schema")
    for key in keys:
        if key in FROM_THE_DATA:
            raise recipe.error(("model", "config", key), "follows from the data and the task; remove it")
        if key not in {*schema.DEFAULTS, *schema.ONLY, *schema.INERT, *getattr(schema, "SYNONYMS", ())}:
            _resolve_config(recipe, {key: keys[key]})


def _resolve_config(recipe: Recipe, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the complete configuration; an error names the recipe's key, or the checkpoint if it holds the value."""
    schema = families.part(recipe.model.name, "schema")
    try:
        return schema.resolve(keys)
    except schema.ConfigError as problem:
        at = ("model", "config", problem.key)
        if problem.key in keys and problem.key not in recipe.model.config and recipe.model.weights:
            raise recipe.error("model.weights", f"the checkpoint's config.json: {problem}") from None
        raise recipe.error(at, problem.message) from None


def checkpoint_keys(recipe: Recipe) -> dict[str, Any]:
    """The ``config.json`` of ``model.weights``, downloaded if need be; nothing for new weights."""
    folder = weights_folder(recipe)
    return {} if folder is None else _read(recipe, folder / "config.json")


def _local_checkpoint_keys(recipe: Recipe) -> dict[str, Any] | None:
    """As :func:`checkpoint_keys`, from this machine alone; None for a hub repository that is not in its cache."""
    weights = recipe.model.weights
    if weights is None:
        return {}
    if recipe.hub_weights is None:
        return checkpoint_keys(recipe)
    if weights.startswith((".", "/", "~")) or weights.count("/") != 1:
        apart = "; write its revision into model.revision" if "@" in weights else ""
        run = "; if a run is to make it, train that first" if weights.endswith("/model") else apart
        raise recipe.error("model.weights", f"{weights} is neither a folder nor a hub repository (owner/name){run}")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached_path = try_to_load_from_cache(weights, "config.json", revision=recipe.model.revision)
    except HFValidationError:
        apart = "; write its revision into model.revision" if "@" in weights else ""
        raise recipe.error("model.weights", f"{weights} is no name of a hub repository (owner/name){apart}") from None
    return _read(recipe, Path(cached_path)) if isinstance(cached_path, str) else None


def _read(recipe: Recipe, path: Path) -> dict[str, Any]:
    """Return the configuration of a checkpoint, which must be of the recipe's model family.

    Args:
        recipe: recipe of the run, for errors.
        path: path of the checkpoint's ``config.json``.
    """
    try:
        keys = read_object(path)
    except FileNotFoundError:
        raise recipe.error("model.weights", f"{path.parent} holds no config.json") from None
    except OSError as problem:
        raise recipe.error("model.weights", f"cannot read {path}: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise recipe.error("model.weights", str(problem)) from None
    name = recipe.model.name
    if keys.get("model_type", name) != name:
        raise recipe.error("model.weights", f"{path} does not describe a {families.family(name).title}")
    return keys
