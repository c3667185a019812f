"""The number of tokens a CTRL trains on: any up to its positions, which are computed, not learned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.port.lengths import LENGTH, Fit, LengthError


def stretch_unit(config: Mapping[str, Any], chunks: int) -> int:
    """As in :mod:`models.reformer.lengths`; CTRL has no chunks, and 32 tokens show what can be wrong."""
    return min(32, config["n_positions"])


def stretched(config: Mapping[str, Any], length: int, whole: int) -> dict[str, Any]:
    """As in :mod:`models.reformer.lengths`: no key of a CTRL depends on the length."""
    return {}


def longest(config: Mapping[str, Any]) -> int:
    """Most tokens that a text may have in evaluation."""
    return config["n_positions"]


def evaluated(config: Mapping[str, Any], length: int) -> int:
    """As in :mod:`models.reformer.lengths`: any length is computed as it is."""
    return length


def read_alike(config: Mapping[str, Any], length: int, whole: int) -> int:
    """As in :mod:`models.reformer.lengths`: no token of a CTRL sees a later one."""
    return min(whole, max(1, length))


def fit(config: Mapping[str, Any], wanted: int, given: Collection[str] | None = None) -> Fit:
    """The wanted length itself.

    Args:
        config: a resolved configuration (``schema.resolve``).
        given: as :func:`models.reformer.lengths.fit`; CTRL chooses nothing.

    Raises:
        LengthError: it has fewer positions.
    """
    most = config["n_positions"]
    if wanted > most:
        raise LengthError("n_positions", f"{most} is less than {wanted}", [{LENGTH: most}, {"n_positions": wanted}])
    return Fit(wanted)
