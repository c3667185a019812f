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
#: So do numbers below half of the lowest one, if that is below this (exp(-50) is 2e-22) and
HIDES_BELOW = -50.0
#: this many times as large as any other number.
HIDES_BEYOND = 8.0
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
        is_mask: whether it only tells some elements from others: booleans, zeros and ones, zeros and minus infinity.
    """

    shape: tuple[int, ...]
    norm: float
    ordered: tuple[float, ...]
    unordered: tuple[float, ...]
    is_mask: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def take_fingerprint(value: np.ndarray) -> Fingerprint | None:
    """Return the fingerprint of a tensor; None where it would say nothing: no numbers, one value throughout, a whole
    number. NaN is like nothing else. What a mask hides has the size of the other elements, so that it does not outweigh
    them; a mask is the same as its negation."""
    if value.dtype.kind not in "biuf" or not value.size:
        return None
    x = value.astype(np.float64).ravel()
    x[x < MINUS_INFINITY] = MINUS_INFINITY
    if not np.isfinite(x).all():
        return Fingerprint(_shape_of(value), math.nan, (), ())
    if (x == x[0]).all() and (x.size > 1 or x[0] == np.round(x[0])):
        return None
    _lift_hidden(x)
    is_mask = bool(np.isin(x, (0.0, 1.0)).all() or np.isin(x, (0.0, -1.0)).all())
    if is_mask:
        x = (x != x[0]).astype(np.float64)
    norm = float(np.sqrt(np.mean(x * x)))
    ordered = _projected(x)
    x.sort()
    return Fingerprint(_shape_of(value), norm, ordered, _projected(x), is_mask)


def _lift_hidden(x: np.ndarray) -> None:
    """Replace, in place, elements that stand for minus infinity by the negative root mean square of the others.

    If the others are zeros, by -1.
    """
    lowest = x.min()
    if lowest >= HIDES_BELOW:
        return
    is_hidden = x < lowest / 2
    others = x[~is_hidden]
    if not others.size or HIDES_BEYOND * np.abs(others).max() > -lowest:
        return
    x[is_hidden] = -float(np.sqrt(np.mean(others * others))) or -1.0


def _shape_of(value: np.ndarray) -> tuple[int, ...]:
    return tuple(length for length in value.shape if length != 1)


def find_distance(one: Fingerprint, other: Fingerprint) -> tuple[float, float]:
    """Return the relative distance of two tensors of one size: in order, and regardless of order."""
    if math.isnan(one.norm) or math.isnan(other.norm):
        return math.inf, math.inf
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
