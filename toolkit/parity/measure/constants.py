"""Distance of a constant that a port computes once from the reference's, in units of rounding."""

from __future__ import annotations

import numpy as np

#: Half the distance from 1 to the next number of float32.
UNIT = 2.0**-24


def units_off(name: str, own: np.ndarray, given: np.ndarray) -> float:
    """For a user's buffer (``buffer:NAME``), by its largest number; for a table of positions, by their angles."""
    return of_largest(own, given) if name.startswith("buffer:") else of_angles(own, given)


def of_angles(own: np.ndarray, theirs: np.ndarray) -> float:
    """Distance of two position tables (positions, width) in units of rounding of the angle: 2^-24 times the position,
    or times 1 for the first. Infinite if shape or dtype differs."""
    if own.shape != theirs.shape or own.dtype != theirs.dtype:
        return float("inf")
    angles = np.maximum(np.arange(len(own), dtype=np.float64), 1.0)[:, None]
    return float((np.abs(own.astype(np.float64) - theirs) / (UNIT * angles)).max())


def of_largest(own: np.ndarray, given: np.ndarray) -> float:
    """Error of a table, in units of float32's rounding of its largest number; infinite if integers differ."""
    if own.dtype.kind != "f" or given.dtype.kind != "f":
        return 0.0 if np.array_equal(own, given) else np.inf
    largest = float(np.abs(given).max(initial=0.0))
    apart = float(np.abs(own.astype(np.float64) - given).max(initial=0.0))
    return 0.0 if apart == 0 else np.inf if largest == 0 else apart / (UNIT * largest)
