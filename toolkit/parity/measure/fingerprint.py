"""Fingerprints of tensors, which show whether two tensors hold the same numbers, in the same or in another order.

The fingerprint of a tensor x with n elements holds random projections w.x / sqrt(n) with fixed normal w (Johnson and
Lindenstrauss 1984), once of x and once of the sorted x. On average, the distance of two tensors' projections is the
distance of the tensors.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

#: Numbers below this represent minus infinity, such as the numbers that a mask adds to scores.
MINUS_INFINITY = -5000.0
#: If the lowest number of a tensor is below this (exp(-50) is 2e-22), numbers below half of the lowest number may
#: represent minus infinity, too (see ``HIDES_BEYOND``).
HIDES_BELOW = -50.0
#: They do if the magnitude of the lowest number is at least this many times the magnitude of all other numbers.
HIDES_BEYOND = 8.0
#: Number of projections of the elements in their order, and likewise of the sorted elements.
PROJECTIONS = 2
#: Number of elements that are projected at a time.
BLOCK = 2**14


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of a tensor: its size, and random projections of its elements.

    Attributes:
        shape: shape of the tensor without axes of length 1.
        norm: root mean square of the elements.
        ordered: projections of the flattened elements, (:data:`PROJECTIONS`,).
        unordered: projections of the sorted elements, (:data:`PROJECTIONS`,).
        is_mask: whether the tensor has only two values, such as booleans, 0 and 1, or 0 and minus infinity.
    """

    shape: tuple[int, ...]
    norm: float
    ordered: tuple[float, ...]
    unordered: tuple[float, ...]
    is_mask: bool = False

    @property
    def size(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.shape)


def take_fingerprint(tensor: np.ndarray) -> Fingerprint | None:
    """Return the fingerprint of a tensor; None if it has no elements, only equal elements, or a single whole number.

    A tensor with NaN equals no other tensor. Elements that represent minus infinity get the magnitude of the other
    elements, so that they do not outweigh them. A mask has the same fingerprint as its negation.
    """
    if tensor.dtype.kind not in "biuf" or not tensor.size:
        return None
    shape = tuple(size for size in tensor.shape if size != 1)
    x = tensor.astype(np.float64).ravel()
    x[x < MINUS_INFINITY] = MINUS_INFINITY
    if not np.isfinite(x).all():
        return Fingerprint(shape, math.nan, (), ())
    if (x == x[0]).all() and (x.size > 1 or x[0] == np.round(x[0])):
        return None
    _lift_hidden(x)
    is_mask = bool(np.isin(x, (0.0, 1.0)).all() or np.isin(x, (0.0, -1.0)).all())
    if is_mask:
        x = (x != x[0]).astype(np.float64)
    norm = float(np.sqrt(np.mean(x * x)))
    projections = _project(x)
    x.sort()
    return Fingerprint(shape, norm, projections, _project(x), is_mask)


def _lift_hidden(x: np.ndarray) -> None:
    """Replace, in place, elements that represent minus infinity by the negative root mean square of the other elements.

    If all other elements are 0, the replacement is -1.
    """
    lowest = x.min()
    if lowest >= HIDES_BELOW:
        return
    is_hidden = x < lowest / 2
    others = x[~is_hidden]
    if not others.size or HIDES_BEYOND * np.abs(others).max() > -lowest:
        return
    x[is_hidden] = -float(np.sqrt(np.mean(others * others))) or -1.0


def find_distance(first: Fingerprint, second: Fingerprint) -> tuple[float, float]:
    """Return the relative distance of two tensors of equal size: in their order, and regardless of the order.

    Both are infinite if a tensor has NaN.

    Args:
        first: fingerprint of a tensor.
        second: fingerprint of the other tensor.
    """
    if math.isnan(first.norm) or math.isnan(second.norm):
        return math.inf, math.inf
    size = max(first.norm, second.norm)

    def compare(first_projections: tuple[float, ...], second_projections: tuple[float, ...]) -> float:
        """Return the relative distance of two tensors, given projections of both."""
        pairs = zip([first.norm, *first_projections], [second.norm, *second_projections], strict=True)
        return max(abs(a - b) for a, b in pairs) / size

    return compare(first.ordered, second.ordered), compare(first.unordered, second.unordered)


def _project(x: np.ndarray) -> tuple[float, ...]:
    """Return the projections of a flat float64 array, (:data:`PROJECTIONS`,)."""
    num_blocks = -(-x.size // BLOCK)
    padded_x = np.zeros(num_blocks * BLOCK)
    padded_x[: x.size] = x
    directions, block_factors = _draw_directions()
    block_products = padded_x.reshape(num_blocks, BLOCK) @ directions
    factors = block_factors[np.arange(num_blocks) % len(block_factors)]
    return tuple(float(number) for number in (block_products * factors).sum(0) / np.sqrt(x.size))


@functools.cache
def _draw_directions() -> tuple[np.ndarray, np.ndarray]:
    """Return the fixed random numbers of the projections: directions within a block, and factors of the blocks.

    Both are (:data:`BLOCK`, :data:`PROJECTIONS`).
    """
    generator = np.random.default_rng(0)
    return generator.standard_normal((BLOCK, PROJECTIONS)), generator.standard_normal((BLOCK, PROJECTIONS))
