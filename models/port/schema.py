"""Shared by the families' configuration schemas: errors that name a key, and checks of single values.

A schema is plain Python, so that a recipe can be checked without importing Paddle. A key of a ``config.json`` is
*honoured*, *inert* (the reference stores it and computes nothing from it), or rejected by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

#: Keys of every family in published ``config.json`` files that do not change the reference's computation.
SHARED_INERT = frozenset({
    "_name_or_path", "architectures", "bos_token_id", "decoder_start_token_id", "do_sample", "dtype",
    "finetuning_task", "is_encoder_decoder", "max_length", "model_type", "name_or_path", "output_past", "prefix",
    "sep_token_id", "task_specific_params", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip

#: Keys of every family that change the computation, with the one value at which they do not.
SHARED_ONLY: dict[str, Any] = {
    "pruned_heads": {},
    "output_hidden_states": False,
    "output_attentions": False,
    "add_cross_attention": False,
    "return_dict": True,
    "gradient_checkpointing": False,
    "torchscript": False,
    "quantization_config": None,
}

#: Largest whole number: sizes and ids have 32 bits.
MOST = 2**31 - 1

#: The largest epsilon that Paddle's layer norm takes.
MOST_EPSILON = 1e-3

#: Maximum number of layers, 200 times as many as in the published models. A larger number is a mistake, and would fill
#: the memory.
MOST_LAYERS = 10_000

#: More labels than any data has; a larger number is a mistake, and would fill the memory with names.
MOST_LABELS = 1_000_000

#: Maximum number of characters of a message about a value; the middle of a longer message is left out.
LONGEST_MESSAGE = 400

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")


class ConfigError(ValueError):
    """A key that is unknown, unsupported or has a wrong value. ``key`` names it."""

    def __init__(self, key: str, message: str) -> None:
        half = LONGEST_MESSAGE // 2  # a value may be a list of a million numbers
        message = message if len(message) <= LONGEST_MESSAGE else f"{message[:half]} ... {message[-half:]}"
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


def merge(
    given: Mapping[str, Any], defaults: Mapping[str, Any], only: Mapping[str, Any], inert: Iterable[str]
) -> dict[str, Any]:
    """Merge given values of honoured keys into the defaults; ``only`` has keys that change the computation, with the
    one value at which they do not. Raises ConfigError for an unknown key, or another value of ``only``."""
    config = dict(defaults)
    for key, value in given.items():
        if key in only:
            if value not in (only[key], None):
                raise ConfigError(key, f"{value!r} is not supported; only {only[key]!r} is")
        elif key in defaults:
            config[key] = list(value) if isinstance(value, tuple) else value
        elif key not in inert:
            close = difflib.get_close_matches(key, defaults, n=1)
            raise ConfigError(key, "unknown key" + (f", did you mean {close[0]}?" if close else ""))
    return config


def check_whole(config: Mapping[str, Any], keys: Iterable[str], least: int, most: int = MOST) -> None:
    """Raise :class:`ConfigError` unless the values are whole numbers from ``least`` to ``most``."""
    for key in keys:
        if not _is_whole(config[key]) or config[key] < least:
            raise ConfigError(key, f"{config[key]!r} should be a whole number of at least {least}")
        if config[key] > most:
            raise ConfigError(key, f"{config[key]} is too large; {most} is the most")


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_pad_token(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` unless the padding id is in the vocabulary, or None."""
    if config["pad_token_id"] is None:
        return
    check_whole(config, ("pad_token_id",), 0)
    if (size := config["vocab_size"]) <= config["pad_token_id"]:
        raise ConfigError("pad_token_id", f"{config['pad_token_id']} is no id of a vocabulary of {size}")


def check_flags(config: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise :class:`ConfigError` unless the values are true or false."""
    for key in keys:
        if not isinstance(config[key], bool):
            raise ConfigError(key, f"{config[key]!r} should be true or false")


def are_whole(values: Any, least: int = 1) -> bool:
    """Whether this is a list of whole numbers from ``least`` to :data:`MOST`."""
    if not isinstance(values, (list, tuple)):
        return False
    return all(_is_whole(value) and least <= value <= MOST for value in values)


def check_probabilities(config: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise :class:`ConfigError` unless the values are at least 0 and less than 1."""
    for key in keys:
        if not _is_number(config[key]) or not 0 <= config[key] < 1:
            raise ConfigError(key, f"{config[key]!r} should be at least 0 and less than 1")


def check_not_negative(config: Mapping[str, Any], keys: Iterable[str], most: float = 1e30) -> None:
    """Raise :class:`ConfigError` unless the values are numbers from 0 to ``most``."""
    for key in keys:
        if not _is_number(config[key]) or not 0 <= config[key] <= most:
            raise ConfigError(key, f"{config[key]!r} should be a number from 0 to {most:g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_problem_type(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` unless the classification head's ``problem_type`` is one of the reference's."""
    if config["problem_type"] not in PROBLEM_TYPES:
        raise ConfigError("problem_type", f"{config['problem_type']!r} is none of {PROBLEM_TYPES[1:]}")


def settle_labels(config: dict[str, Any]) -> None:
    """Derive ``num_labels`` and ``id2label`` from each other (2 labels if neither is set). Raises ConfigError if they
    are no labels, or contradict each other."""
    if config["num_labels"] is not None:
        check_whole(config, ("num_labels",), 1, MOST_LABELS)
    if config["id2label"] is not None:
        if isinstance(config["id2label"], Mapping) and len(config["id2label"]) > MOST_LABELS:
            raise ConfigError("id2label", f"{len(config['id2label'])} labels are too many; {MOST_LABELS} is the most")
        config["id2label"] = _labels(config["id2label"])
        count = len(config["id2label"])
        if config["num_labels"] not in (None, count):
            raise ConfigError("num_labels", f"{config['num_labels']} does not fit the {count} entries of id2label")
    count = config["num_labels"] or len(config["id2label"] or "ab")
    config["num_labels"] = count
    config["id2label"] = config["id2label"] or {index: f"LABEL_{index}" for index in range(count)}
    config["label2id"] = {name: index for index, name in config["id2label"].items()}


def _labels(names: Any) -> dict[int, str]:
    """Convert the keys of ``id2label``, strings in JSON, to whole numbers."""
    try:
        labels = {int(index): name for index, name in names.items()}
    except (AttributeError, TypeError, ValueError):
        labels = {-1: ""}
    if sorted(labels) != list(range(len(labels))) or not all(isinstance(name, str) for name in labels.values()):
        raise ConfigError("id2label", f"{names!r:.80} should name the labels 0, 1, 2, ...")
    return labels
