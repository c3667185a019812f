"""Count sketches: a few thousand sums that stand for a tensor too large to keep.

Each element gets a random sign and is added to one of :data:`COUNT` sums. A sketch is linear: that of a difference is
the difference of two sketches. Divided by the root of the elements of a sum, its mean square is an unbiased estimate of
the tensor's (Alon, Matias & Szegedy 1996; Charikar, Chen & Farach-Colton 2002), with a relative standard deviation of
sqrt(2 / COUNT): 2%, and 1% for an RMS. Each element is in a sum: one that differs is seen, beyond the rounding of its
sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

#: Sums of a sketch: a prime, so that the rows and columns of a matrix are spread over all of them.
COUNT = 4093
#: From this many elements on a tensor is sketched.
LARGE = 4 * COUNT
#: Elements of each sum that are added up by halves at a time, which keeps rounding small.
ROWS = 64
#: Of the signs.
SEED = 20


@dataclass(frozen=True)
class Sketch:
    """The sums of a tensor of that shape: float64 (COUNT,), with about the RMS of its elements."""

    values: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: np.ndarray) -> Sketch:
        """Of a tensor in memory."""
        flat = np.ravel(value)
        step = ROWS * COUNT
        return cls.of_pieces((flat[start : start + step] for start in range(0, flat.size, step)), value.shape)

    @classmethod
    def of_pieces(cls, pieces: Iterable[np.ndarray], shape: tuple[int, ...]) -> Sketch:
        """Of a tensor whose elements come in a row, some at a time."""
        total = np.zeros(COUNT, np.longdouble)
        bits = np.random.Philox(key=SEED)
        with np.errstate(all="ignore"):  # what is not finite stays so
            for rows in _rows(pieces):
                drawn = bits.random_raw(-(-rows.size // 64)).astype("<u8").view(np.uint8)
                signed = rows * (1.0 - 2.0 * np.unpackbits(drawn, count=rows.size).reshape(rows.shape))
                while len(signed) > 1:
                    half = len(signed) // 2
                    signed = signed[:half] + signed[half:]
                total += signed[0]
            scaled = total / math.sqrt(max(1.0, math.prod(shape) / COUNT))
        return cls(scaled.astype(np.float64), shape)


def _rows(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the elements as float64 (ROWS, COUNT), the last filled up with zeros. Each is overwritten by the next."""
    room, filled = np.zeros(ROWS * COUNT), 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            taken = min(len(room) - filled, len(piece) - start)
            room[filled : filled + taken] = piece[start : start + taken]
            filled, start = filled + taken, start + taken
            if filled == len(room):
                yield room.reshape(ROWS, COUNT)
                filled = 0
    if filled:
        room[filled:] = 0.0
        yield room.reshape(ROWS, COUNT)
