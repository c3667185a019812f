"""Lengths of texts in training: any number of tokens within the model's reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.port.lengths import LENGTH, Fit, LengthError


def fit(config: Mapping[str, Any], num_tokens: int, set_keys: Collection[str] | None = None) -> Fit:
    """Return the requested length."""
    max_tokens = config["reach"]
    if num_tokens > max_tokens:
        raise LengthError(
            "reach", f"{max_tokens} is less than {num_tokens}", [{LENGTH: max_tokens}, {"reach": num_tokens}]
        )
    return Fit(num_tokens)


def max_evaluation_length(config: Mapping[str, Any]) -> int:
    """Return the largest number of tokens of a text in evaluation."""
    return config["reach"]


def evaluation_length(config: Mapping[str, Any], length: int) -> int:
    """Return the length itself, because any length is computed without padding."""
    return length


def equivalent_length(config: Mapping[str, Any], length: int, num_tokens: int) -> int:
    """Return the length within the text, because no token depends on later tokens."""
    return min(num_tokens, max(1, length))


def stretch_unit(config: Mapping[str, Any], chunks: int) -> int:
    """Return the smallest length that shows a fault."""
    return min(16, config["reach"])


def stretch_config(config: Mapping[str, Any], length: int, num_tokens: int) -> dict[str, Any]:
    """Return no changes, because no key depends on the length."""
    return {}
