"""How large a tensor is, or the difference of two: RMS, mean, maximum, whether all of it is finite. In float64, piece
by piece: the largest gradient alone takes 2.5 GB."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: Elements looked at at a time: few enough to stay in a processor's cache.
PIECE = 2**18
#: What a masked score is, for all purposes: the lowest that Reformer uses.
LOWEST = -1e9
#: Rows of a matrix that are read from disk at a time.
ROWS = 4096


@dataclass
class Spread:
    """The size of the values seen so far. The sum of their squares is kept relative to the largest: no overflow.

    Attributes:
        count: how many values.
        largest: the largest magnitude.
        squares: the sum of squares over ``largest`` squared.
        total: the sum of magnitudes over ``largest``.
        finite: whether all were.
    """

    count: int = 0
    largest: float = 0.0
    squares: float = 0.0
    total: float = 0.0
    finite: bool = True

    @classmethod
    def of(cls, value: np.ndarray, truth: np.ndarray | None = None) -> Spread:
        """Of a tensor, or of its difference from another of the same shape, in float64."""
        spread = cls()
        flat, flat_truth = np.ravel(value), None if truth is None else np.ravel(truth)
        for start in range(0, flat.size, PIECE):
            piece = flat[start : start + PIECE].astype(np.float64)
            if flat_truth is not None:
                piece -= flat_truth[start : start + PIECE]
            spread.add(_spread_of_piece(piece))
        return spread

    @classmethod
    def of_rows(cls, values: np.ndarray, left_out: np.ndarray, truth: Any = None) -> Spread:
        """As :meth:`of`, of the rows of a matrix but those at the indices ``left_out``.

        Args:
            truth: anything of the same shape that gives a slice of its rows, such as a tensor in a file.
        """
        spread = cls()
        for start in range(0, len(values), ROWS):
            end = min(start + ROWS, len(values))
            kept = np.setdiff1d(np.arange(start, end), left_out, assume_unique=True) - start
            spread.add(cls.of(values[start:end][kept], None if truth is None else truth[start:end][kept]))
        return spread

    def add(self, other: Spread) -> None:
        """Take in the values of another."""
        self.count += other.count
        self.finite = self.finite and other.finite
        largest = max(self.largest, other.largest)
        if largest > 0:
            mine, others = self.largest / largest, other.largest / largest
            self.squares = self.squares * mine**2 + other.squares * others**2
            self.total = self.total * mine + other.total * others
        self.largest = largest

    @property
    def rms(self) -> float | None:
        """Root of the mean square; None of nothing, or where not all is finite."""
        return self.largest * math.sqrt(self.squares / self.count) if self.finite and self.count else None

    @property
    def mean(self) -> float | None:
        """Mean magnitude; None of nothing, or where not all is finite."""
        return self.largest * (self.total / self.count) if self.finite and self.count else None

    def record(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """As it stands in a ``result.json``."""
        largest = self.largest if self.finite and self.count else None
        return {"shape": list(shape), "finite": self.finite, "rms": self.rms, "mean": self.mean, "max": largest}

    def as_json(self) -> dict[str, Any]:
        """What :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Spread:
        return cls(**content)


def _spread_of_piece(piece: np.ndarray) -> Spread:
    """Of a float64 array, which is overwritten."""
    largest = float(max(piece.max(), -piece.min()))
    if not math.isfinite(largest):
        return Spread(piece.size, finite=False)
    if largest == 0.0:
        return Spread(piece.size)
    scale = 1.0
    if largest < 1e-290:  # its reciprocal would overflow
        scale = 1e300
        piece *= scale
    piece *= 1 / (largest * scale)
    np.abs(piece, out=piece)
    return Spread(piece.size, largest, float(np.dot(piece, piece)), float(piece.sum()))


def describe(value: np.ndarray) -> dict[str, Any]:
    """What is recorded of a tensor by itself: its shape, size and scale, and whether all of it is finite."""
    value = np.asarray(value)
    return Spread.of(value).record(value.shape)


def as_compared(name: str, value: np.ndarray) -> np.ndarray:
    """A tensor as it is measured: of attention scores that a mask has changed, none below :data:`LOWEST`. Beside
    CTRL's -1.8e308 for padding, its -1e4 for the future would be nothing."""
    return np.maximum(value, LOWEST) if name.startswith("masked_scores:") else value


def difference(value: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """err(value, truth) as the verdicts use it: RMS and maximum of value - truth, computed in float64.

    Tensors of different shape are not compared, even where they would broadcast: the shapes are then all there is.
    """
    value, truth = np.asarray(value), np.asarray(truth)
    if value.shape != truth.shape:
        return {"shape": list(value.shape), "finite": bool(np.isfinite(value).all()), "rms": None, "max": None}
    return Spread.of(value, truth).record(value.shape)
