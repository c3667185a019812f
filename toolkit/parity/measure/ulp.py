"""How far two float32 tensors lie apart, counted in representable numbers. Zeros of either sign are one number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Distance if one of two numbers is NaN: larger than any other.
NAN_DISTANCE = 2**33


@dataclass
class BitDifference:
    """Of two float32 tensors: the number of differing elements, of all elements, and the largest difference in units in
    the last place. ``problem`` says why they cannot be compared."""

    differing: int
    of: int
    units: int
    problem: str | None = None


def compare_bits(ours: np.ndarray, theirs: np.ndarray) -> BitDifference:
    """Compare a tensor of the port with the reference's."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype or ours.dtype != np.float32:
        problem = f"{ours.dtype} {list(ours.shape)}, the reference's is {theirs.dtype} {list(theirs.shape)}"
        return BitDifference(max(ours.size, theirs.size, 1), theirs.size, NAN_DISTANCE, problem)
    apart = count_ulps(np.ascontiguousarray(ours), np.ascontiguousarray(theirs))
    return BitDifference(int((apart != 0).sum()), int(apart.size), int(apart.max(initial=0)))


def count_ulps(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Number of float32 steps between each pair of elements: int64."""
    distance = np.abs(_place(ours) - _place(theirs))
    nan = np.isnan(ours) | np.isnan(theirs)
    return np.where(nan, np.where(ours.view(np.int32) == theirs.view(np.int32), 0, NAN_DISTANCE), distance)


def _place(x: np.ndarray) -> np.ndarray:
    """Rank of each float32 among all of them; 0 has rank 0."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
