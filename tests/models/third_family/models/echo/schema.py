"""Every key of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.port.schema import (
    SHARED_INERT,
    SHARED_ONLY,
    ConfigError,
    check_integers,
    check_pad_token,
    check_probabilities,
    check_problem_type,
    merge_with_defaults,
    resolve_labels,
)

__all__ = ["DEFAULTS", "INERT", "ONLY", "ConfigError"]

DEFAULTS: dict[str, Any] = {
    "breadth": 32,
    "echoes": 2,
    "id2label": None,
    "initializer_range": 0.1,
    "label2id": None,
    "loss_of_echo": 0.1,
    "num_labels": None,
    "pad_token_id": 0,
    "problem_type": None,
    "reach": 256,
    "vocab_size": 258,
}
INERT, ONLY = SHARED_INERT, SHARED_ONLY


def resolve(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys over the defaults, checked."""
    config = merge_with_defaults(keys, DEFAULTS, ONLY, INERT)
    check_integers(config, ("breadth", "echoes", "reach", "vocab_size"), 1)
    check_probabilities(config, ("loss_of_echo",))
    check_pad_token(config)
    check_problem_type(config)
    resolve_labels(config)
    return config


def hidden_width(config: Mapping[str, Any]) -> int:
    """Numbers of a position's hidden state."""
    return config["breadth"]


def layer_elements(config: Mapping[str, Any], length: int) -> list[int]:
    """Elements of each layer's largest tensors, for one text."""
    return [length * (config["breadth"] + length)] * config["echoes"]


def max_positions(config: Mapping[str, Any]) -> int:
    """Most tokens that a text may have."""
    return config["reach"]


def activation_bytes(config: Mapping[str, Any], length: int, causal_lm: bool) -> int:
    """Minimum bytes to train on one text."""
    return 4 * (sum(layer_elements(config, length)) + causal_lm * length * config["vocab_size"])
