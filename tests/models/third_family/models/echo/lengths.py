"""The number of tokens it trains on: any within its reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.port.lengths import LENGTH, Fit, LengthError


def fit(config: Mapping[str, Any], wanted: int, given: Collection[str] | None = None) -> Fit:
    """The wanted length itself."""
    most = config["reach"]
    if wanted > most:
        raise LengthError("reach", f"{most} is less than {wanted}", [{LENGTH: most}, {"reach": wanted}])
    return Fit(wanted)


def max_evaluation_length(config: Mapping[str, Any]) -> int:
    """Most tokens that a text may have in evaluation."""
    return config["reach"]


def evaluation_length(config: Mapping[str, Any], length: int) -> int:
    """Any length is computed as it is."""
    return length


def equivalent_length(config: Mapping[str, Any], length: int, whole: int) -> int:
    """No token sees a later one."""
    return min(whole, max(1, length))


def stretch_unit(config: Mapping[str, Any], chunks: int) -> int:
    """The least length that shows what can be wrong."""
    return min(16, config["reach"])


def stretch_config(config: Mapping[str, Any], length: int, whole: int) -> dict[str, Any]:
    """No key depends on the length."""
    return {}
