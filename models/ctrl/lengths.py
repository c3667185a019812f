"""The numbers of tokens that a CTRL trains on and evaluates: any number up to ``n_positions``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.port.lengths import LENGTH, Fit, LengthError


def fit(config: Mapping[str, Any], num_tokens: int, set_keys: Collection[str] | None = None) -> Fit:
    """Return the training length for texts of ``num_tokens`` tokens, which is ``num_tokens`` itself.

    Args:
        config: resolved configuration (``schema.resolve``).
        num_tokens: required number of tokens, at least 1.
        set_keys: ignored, because no key of a CTRL follows from the length.

    Raises:
        LengthError: the model has fewer positions.
    """
    n_positions = config["n_positions"]
    if num_tokens > n_positions:
        raise LengthError(
            "n_positions",
            f"{n_positions} is less than {num_tokens}",
            [{LENGTH: n_positions}, {"n_positions": num_tokens}],
        )
    return Fit(num_tokens)


def max_evaluation_length(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a text in evaluation."""
    return config["n_positions"]


def evaluation_length(config: Mapping[str, Any], length: int) -> int:
    """Return the number of positions that evaluation computes for a text of ``length`` tokens, without padding."""
    return length


def equivalent_length(config: Mapping[str, Any], length: int, full_length: int) -> int:
    """Return the smallest padded length with the same results in evaluation as ``full_length``.

    No token of a CTRL attends to later tokens, so that the result needs no padding.

    Args:
        config: resolved configuration.
        length: number of tokens of the longest text in the batch.
        full_length: number of tokens of each text with its padding.
    """
    return min(full_length, max(1, length))


def stretch_unit(config: Mapping[str, Any], num_chunks: int) -> int:
    """Return the smallest length that a comparison may cut texts to; its multiples are allowed, too.

    CTRL has no chunks, and 32 tokens are enough to show a fault.

    Args:
        config: resolved configuration.
        num_chunks: required number of attention chunks; ignored.
    """
    return min(32, config["n_positions"])


def stretch_config(config: Mapping[str, Any], length: int, full_length: int) -> dict[str, Any]:
    """Return the configuration keys that change for the same model on the first ``length`` tokens: none.

    Args:
        config: resolved configuration (``schema.resolve``).
        length: number of tokens of the shorter texts.
        full_length: number of tokens of the longest texts.
    """
    return {}
