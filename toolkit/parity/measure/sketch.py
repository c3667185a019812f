"""Count sketches: a few thousand sums that represent a tensor that is too large to store.

Each element gets a random sign and is added to one of :data:`COUNT` sums. A sketch is linear: the sketch of a
difference is the difference of two sketches. Divided by the root of the number of elements of a sum, the sums have a
mean square that is an unbiased estimate of the tensor's mean square (Alon, Matias & Szegedy 1996; Charikar, Chen &
Farach-Colton 2002). Its relative standard deviation is sqrt(2 / COUNT) = 2%, so 1% for an RMS. Each element is in a
sum. So a difference in a single element changes the sketch, unless it is smaller than the rounding of the sum. To
exceed a bound, it must be sqrt(n / COUNT) times as large as in the whole tensor of n elements. Two equal errors in one
sum cancel with probability 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

#: Number of sums of a sketch: a prime, so that the rows and columns of a matrix are spread over every sum.
COUNT = 4093
#: Smallest number of elements of a tensor that is represented by its sketch.
LARGE = 4 * COUNT
#: Number of elements of each sum that are added pairwise at a time, which keeps rounding small.
ROWS = 64
#: Seed of the random signs, which is the same in each run.
SEED = 20


@dataclass(frozen=True)
class Sketch:
    """The sketch of a tensor: :data:`COUNT` sums of its elements with random signs.

    Attributes:
        values: the sums, float64 (COUNT,), scaled so that their RMS is about the RMS of the tensor's elements.
        shape: shape of the tensor.
    """

    values: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: np.ndarray) -> Sketch:
        """Return the sketch of a tensor in memory."""
        flat = np.ravel(value)
        step = ROWS * COUNT
        return cls.of_pieces((flat[start : start + step] for start in range(0, flat.size, step)), value.shape)

    @classmethod
    def of_pieces(cls, pieces: Iterable[np.ndarray], shape: tuple[int, ...]) -> Sketch:
        """Return the sketch of a tensor of this shape, given consecutive parts of its flattened elements."""
        total = np.zeros(COUNT, np.longdouble)
        bit_source = np.random.Philox(key=SEED)
        with np.errstate(all="ignore"):  # NaN and infinity remain in the sums
            for rows in _rows(pieces):
                random_bits = bit_source.random_raw(-(-rows.size // 64)).astype("<u8").view(np.uint8)
                terms = rows * (1.0 - 2.0 * np.unpackbits(random_bits, count=rows.size).reshape(rows.shape))
                while len(terms) > 1:
                    half = len(terms) // 2
                    terms = terms[:half] + terms[half:]
                total += terms[0]
            values = total / math.sqrt(max(1.0, math.prod(shape) / COUNT))
        return cls(values.astype(np.float64), shape)


def _rows(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the elements of a flattened tensor as float64 blocks (ROWS, COUNT), the last padded with zeros.

    All blocks share one memory, so each overwrites the previous block.

    Args:
        pieces: consecutive parts of the flattened tensor.
    """
    buffer, length = np.zeros(ROWS * COUNT), 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            size = min(len(buffer) - length, len(piece) - start)
            buffer[length : length + size] = piece[start : start + size]
            length, start = length + size, start + size
            if length == len(buffer):
                yield buffer.reshape(ROWS, COUNT)
                length = 0
    if length:
        buffer[length:] = 0.0
        yield buffer.reshape(ROWS, COUNT)
