"""Fingerprints of tensors: whether two hold the same numbers, in the same order or in another, without keeping either.

Of a tensor x with n elements, a fingerprint holds random projections w.x / sqrt(n) with fixed normal w (Johnson and
Lindenstrauss 1984), of x as it is and of x sorted. The projections of two tensors are as far apart as the tensors are,
on average.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

#: Numbers below this stand for minus infinity, as what a mask adds to scores does.
MINUS_INFINITY = -5000.0
#: Projections of each kind.
PROJECTIONS = 2
#: Elements that are projected at a time.
BLOCK = 2**14


@dataclass(frozen=True)
class Fingerprint:
    """What is kept of a tensor.

    Attributes:
        shape: without axes of length 1.
        norm: root mean square.
        ordered: projections of the elements in their order, whatever the shape.
        unordered: projections of the sorted elements.
    """

    shape: tuple[int, ...]
    norm: float
    ordered: tuple[float, ...]
    unordered: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def fingerprint(value: np.ndarray) -> Fingerprint | None:
    """Return the fingerprint of a tensor; None where it would say nothing: no numbers, a single value, or NaN."""
    if value.dtype.kind not in "fiu" or value.size < 2:
        return None
    x = value.astype(np.float64).ravel()
    x[x < MINUS_INFINITY] = MINUS_INFINITY
    if not np.isfinite(x).all() or (x == x[0]).all():
        return None
    norm = float(np.sqrt(np.mean(x * x)))
    ordered = _projected(x)
    x.sort()
    return Fingerprint(tuple(length for length in value.shape if length != 1), norm, ordered, _projected(x))


def distance(one: Fingerprint, other: Fingerprint) -> tuple[float, float]:
    """Return the relative distance of two tensors of one size: in order, and regardless of order."""
    size = max(one.norm, other.norm)

    def apart(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
        return max(abs(a - b) for a, b in zip([one.norm, *ours], [other.norm, *theirs], strict=True)) / size

    return apart(one.ordered, other.ordered), apart(one.unordered, other.unordered)


def _projected(x: np.ndarray) -> tuple[float, ...]:
    blocks = -(-x.size // BLOCK)
    whole = np.zeros(blocks * BLOCK)
    whole[: x.size] = x
    within, between = _directions()
    inner = whole.reshape(blocks, BLOCK) @ within
    weights = between[np.arange(blocks) % len(between)]
    return tuple(float(number) for number in (inner * weights).sum(0) / np.sqrt(x.size))


@functools.cache
def _directions() -> tuple[np.ndarray, np.ndarray]:
    """Return the directions within a block, and the factors of blocks."""
    draws = np.random.default_rng(0)
    return draws.standard_normal((BLOCK, PROJECTIONS)), draws.standard_normal((BLOCK, PROJECTIONS))
