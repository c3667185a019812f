"""Distance of two float32 tensors in units in the last place (ULP): the number of float32 numbers between them.

Both signs of zero count as the same number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Distance of NaN from a different number: larger than any other distance.
NAN_DISTANCE = 2**33


@dataclass
class BitDifference:
    """Difference of two float32 tensors, element by element.

    Attributes:
        differing: number of elements that differ.
        of: number of all elements.
        units: largest difference in units in the last place.
        problem: reason why the tensors cannot be compared; None if they can.
    """

    differing: int
    of: int
    units: int
    problem: str | None = None


def compare_bits(ours: np.ndarray, theirs: np.ndarray) -> BitDifference:
    """Return the difference of a tensor of the port from the reference's tensor, bit by bit.

    Args:
        ours: float32 tensor of the port.
        theirs: float32 tensor of the reference, of the same shape.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype or ours.dtype != np.float32:
        problem = f"{ours.dtype} {list(ours.shape)}, the reference's is {theirs.dtype} {list(theirs.shape)}"
        return BitDifference(max(ours.size, theirs.size, 1), theirs.size, NAN_DISTANCE, problem)
    ulps = count_ulps(np.ascontiguousarray(ours), np.ascontiguousarray(theirs))
    return BitDifference(int((ulps != 0).sum()), int(ulps.size), int(ulps.max(initial=0)))


def count_ulps(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the number of units in the last place between each pair of elements, int64.

    Args:
        ours: float32 tensor of the port.
        theirs: float32 tensor of the reference, of the same shape.
    """
    distance = np.abs(_rank(ours) - _rank(theirs))
    is_nan = np.isnan(ours) | np.isnan(theirs)
    return np.where(is_nan, np.where(ours.view(np.int32) == theirs.view(np.int32), 0, NAN_DISTANCE), distance)


def _rank(x: np.ndarray) -> np.ndarray:
    """Return the rank of each number in the order of all float32 numbers, int64; both zeros have rank 0."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
