"""Checks of configuration values for the schemas of all families, with errors that name the key.

A schema is plain Python, so that a recipe can be checked without importing Paddle. A key of a ``config.json`` is
*honored*, *inert* (the reference stores it and computes nothing from it), or rejected by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

#: Inert keys of all families in published ``config.json`` files.
SHARED_INERT = frozenset({
    "_name_or_path", "architectures", "bos_token_id", "decoder_start_token_id", "do_sample", "dtype",
    "finetuning_task", "is_encoder_decoder", "max_length", "model_type", "name_or_path", "output_past", "prefix",
    "sep_token_id", "task_specific_params", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip

#: Keys of all families that change the computation, each with the only supported value, which changes nothing.
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

#: Maximum of all whole numbers, since sizes and ids have 32 bits.
MAX_INTEGER = 2**31 - 1

#: Maximum epsilon of Paddle's layer norm.
MAX_EPSILON = 1e-3

#: Maximum number of layers, 200 times as many as in the published models. A larger number is a mistake and would fill
#: the memory.
MAX_LAYERS = 10_000

#: Maximum number of labels. A larger number is a mistake and would fill the memory with names.
MAX_LABELS = 1_000_000

#: Maximum number of characters of a message about a value; the middle of a longer message is left out.
MAX_MESSAGE_LENGTH = 400

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")


class ConfigError(ValueError):
    """A configuration key is unknown or not supported, or has a wrong value.

    Attributes:
        key: name of the key.
        message: description of the problem without the key, at most :data:`MAX_MESSAGE_LENGTH` characters.
    """

    def __init__(self, key: str, message: str) -> None:
        half = MAX_MESSAGE_LENGTH // 2  # a value may be a list of a million numbers
        message = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:half]} ... {message[-half:]}"
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


def merge_with_defaults(
    keys: Mapping[str, Any], defaults: Mapping[str, Any], only: Mapping[str, Any], inert: Iterable[str]
) -> dict[str, Any]:
    """Return the values of all honored keys: the values that are set, and the defaults of the other keys.

    Args:
        keys: keys that are set, and their values.
        defaults: honored keys and their defaults.
        only: keys with a single supported value.
        inert: keys that are ignored.

    Raises:
        ConfigError: a key is unknown, or a key of ``only`` has another value.
    """
    config = dict(defaults)
    for key, value in keys.items():
        if key in only:
            if value not in (only[key], None):
                raise ConfigError(key, f"{value!r} is not supported; only {only[key]!r} is")
        elif key in defaults:
            config[key] = list(value) if isinstance(value, tuple) else value
        elif key not in inert:
            close = difflib.get_close_matches(key, defaults, n=1)
            raise ConfigError(key, "unknown key" + (f", did you mean {close[0]}?" if close else ""))
    return config


def check_integers(
    config: Mapping[str, Any], checked_keys: Iterable[str], minimum: int, maximum: int = MAX_INTEGER
) -> None:
    """Raise :class:`ConfigError` unless the values of the keys are whole numbers from ``minimum`` to ``maximum``.

    Args:
        config: configuration values by key.
        checked_keys: keys to check.
        minimum: smallest valid value.
        maximum: largest valid value.
    """
    for key in checked_keys:
        if not _is_integer(config[key]) or config[key] < minimum:
            raise ConfigError(key, f"{config[key]!r} should be a whole number of at least {minimum}")
        if config[key] > maximum:
            raise ConfigError(key, f"{config[key]} is too large; {maximum} is the most")


def _is_integer(value: Any) -> bool:
    """Return whether a value is a whole number; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_pad_token(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` unless ``pad_token_id`` is an id of the vocabulary or None."""
    if config["pad_token_id"] is None:
        return
    check_integers(config, ("pad_token_id",), 0)
    if (size := config["vocab_size"]) <= config["pad_token_id"]:
        raise ConfigError("pad_token_id", f"{config['pad_token_id']} is no id of a vocabulary of {size}")


def check_flags(config: Mapping[str, Any], checked_keys: Iterable[str]) -> None:
    """Raise :class:`ConfigError` unless the values of the keys are true or false."""
    for key in checked_keys:
        if not isinstance(config[key], bool):
            raise ConfigError(key, f"{config[key]!r} should be true or false")


def is_integer_list(value: Any, minimum: int = 1) -> bool:
    """Return whether a value is a list of whole numbers from ``minimum`` to :data:`MAX_INTEGER`."""
    if not isinstance(value, (list, tuple)):
        return False
    return all(_is_integer(item) and minimum <= item <= MAX_INTEGER for item in value)


def check_probabilities(config: Mapping[str, Any], checked_keys: Iterable[str]) -> None:
    """Raise :class:`ConfigError` unless the values of the keys are at least 0 and less than 1."""
    for key in checked_keys:
        if not _is_number(config[key]) or not 0 <= config[key] < 1:
            raise ConfigError(key, f"{config[key]!r} should be at least 0 and less than 1")


def check_not_negative(config: Mapping[str, Any], checked_keys: Iterable[str], maximum: float = 1e30) -> None:
    """Raise :class:`ConfigError` unless the values of the keys are numbers from 0 to ``maximum``.

    Args:
        config: configuration values by key.
        checked_keys: keys to check.
        maximum: largest valid value.
    """
    for key in checked_keys:
        if not _is_number(config[key]) or not 0 <= config[key] <= maximum:
            raise ConfigError(key, f"{config[key]!r} should be a number from 0 to {maximum:g}")


def _is_number(value: Any) -> bool:
    """Return whether a value is a number; booleans are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_problem_type(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` unless ``problem_type`` is one of :data:`PROBLEM_TYPES`."""
    if config["problem_type"] not in PROBLEM_TYPES:
        raise ConfigError("problem_type", f"{config['problem_type']!r} is none of {PROBLEM_TYPES[1:]}")


def resolve_labels(changeable_config: dict[str, Any]) -> None:
    """Set ``num_labels``, ``id2label`` and ``label2id`` from those that are set; the default is 2 labels.

    Raises:
        ConfigError: the values are invalid or contradict each other.
    """
    if changeable_config["num_labels"] is not None:
        check_integers(changeable_config, ("num_labels",), 1, MAX_LABELS)
    if changeable_config["id2label"] is not None:
        if isinstance(changeable_config["id2label"], Mapping) and len(changeable_config["id2label"]) > MAX_LABELS:
            raise ConfigError(
                "id2label", f"{len(changeable_config['id2label'])} labels are too many; {MAX_LABELS} is the most"
            )
        changeable_config["id2label"] = _parse_label_names(changeable_config["id2label"])
        count = len(changeable_config["id2label"])
        if changeable_config["num_labels"] not in (None, count):
            raise ConfigError(
                "num_labels", f"{changeable_config['num_labels']} does not fit the {count} entries of id2label"
            )
    count = changeable_config["num_labels"] or len(changeable_config["id2label"] or "ab")
    changeable_config["num_labels"] = count
    changeable_config["id2label"] = changeable_config["id2label"] or {index: f"LABEL_{index}" for index in range(count)}
    changeable_config["label2id"] = {name: index for index, name in changeable_config["id2label"].items()}


def _parse_label_names(id2label: Any) -> dict[int, str]:
    """Return the name of each label from ``id2label``, whose keys are strings in JSON."""
    try:
        names = {int(index): name for index, name in id2label.items()}
    except (AttributeError, TypeError, ValueError):
        names = {-1: ""}
    if sorted(names) != list(range(len(names))) or not all(isinstance(name, str) for name in names.values()):
        raise ConfigError("id2label", f"{id2label!r:.80} should name the labels 0, 1, 2, ...")
    return names
