"""Size of a tensor or of a difference: RMS, mean, maximum, whether all of it is finite. In float64, piece by piece: the
largest gradient alone takes 2.5 GB."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from toolkit.parity.measure.sketch import Sketch

#: Elements processed at a time: few enough to stay in a processor's cache.
PIECE = 2**18
#: Rows of a large matrix processed at a time.
ROWS = 4096


@dataclass
class TensorStats:
    """Statistics of a tensor, or of a difference.

    Attributes:
        shape: of the tensor.
        finite: whether all of its elements are.
        rms, mean, max: root of the mean square, mean and maximum of the magnitudes, 0 of an empty tensor; None if the
            tensor is not finite, or if the shapes of the two differ.
        missing: there is no such tensor.
    """

    shape: list[int]
    finite: bool = True
    rms: float | None = None
    mean: float | None = None
    max: float | None = None
    missing: bool = False


@dataclass
class TensorRecord(TensorStats):
    """A tensor of R64, and the distance of the reference's other runs from it: the noise baseline.

    Attributes:
        noise, noise_max: dtype -> the RMS and the maximum of the difference in each run; None where that is not
            finite.
    """

    noise: dict[str, list[float | None]] = field(default_factory=dict)
    noise_max: dict[str, list[float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, stats: TensorStats) -> TensorRecord:
        """A tensor of R64 before any other run was measured."""
        return cls(**vars(stats))

    def add_noise(self, dtype: str, error: TensorStats) -> None:
        """Take in the distance of one more run from R64."""
        self.noise.setdefault(dtype, []).append(error.rms)
        self.noise_max.setdefault(dtype, []).append(error.max)


@dataclass
class RunningStats:
    """The size of the values seen so far. The sum of their squares is kept relative to the largest: no overflow.

    Attributes:
        count: of the values.
        largest: the largest magnitude.
        squares: the sum of squares over ``largest`` squared.
        total: the sum of magnitudes over ``largest``.
        finite: whether all are.
    """

    count: int = 0
    largest: float = 0.0
    squares: float = 0.0
    total: float = 0.0
    finite: bool = True

    @classmethod
    def of(cls, value: np.ndarray, truth: np.ndarray | Sketch | None = None) -> RunningStats:
        """Of a tensor, or of its difference from another of the same shape, in float64."""
        flat = np.ravel(value)
        return cls.of_pieces((flat[start : start + PIECE] for start in range(0, flat.size, PIECE)), truth)

    @classmethod
    def of_pieces(cls, pieces: Iterable[np.ndarray], truth: np.ndarray | Sketch | None = None) -> RunningStats:
        """As :meth:`of`, for a tensor whose elements come at most :data:`PIECE` at a time. If there is only a sketch of
        the other, those of the sketch of the difference."""
        if isinstance(truth, Sketch):
            return cls.of(Sketch.of_pieces(pieces, truth.shape).values, truth.values)
        stats, start = cls(), 0
        flat_truth = None if truth is None else np.ravel(truth)
        room = np.empty(0)
        for given in pieces:
            if len(given) > len(room):
                room = np.empty(len(given))  # one for all pieces, of which the first is the largest: it stays cached
            piece, end = room[: len(given)], start + len(given)
            if flat_truth is not None and given.dtype == np.float64:
                np.subtract(given, flat_truth[start:end], out=piece)
            else:
                np.copyto(piece, given)
                if flat_truth is not None:
                    piece -= flat_truth[start:end]
            stats.add(_of_piece(piece))
            start = end
        return stats

    def add_rows(self, rows: np.ndarray, start: int, left_out: np.ndarray, truth: np.ndarray | None = None) -> None:
        """Take in rows of a matrix from row ``start`` on, as :meth:`of`, except those at the indices ``left_out`` of
        the whole matrix."""
        inside = (left_out >= start) & (left_out < start + len(rows))
        if inside.any():
            kept = np.setdiff1d(np.arange(len(rows)), left_out[inside] - start, assume_unique=True)
            rows, truth = rows[kept], None if truth is None else truth[kept]
        self.add(RunningStats.of(rows, truth))

    def add(self, other: RunningStats) -> None:
        """Take in the values of another."""
        self.count += other.count
        self.finite = self.finite and other.finite
        largest = max(self.largest, other.largest)
        if largest > 0:
            mine, others = self.largest / largest, other.largest / largest
            self.squares = self.squares * mine**2 + other.squares * others**2
            self.total = self.total * mine + other.total * others
        self.largest = largest

    def stats(self, shape: tuple[int, ...]) -> TensorStats:
        """Statistics of a tensor of that shape."""
        if not self.finite:
            return TensorStats(list(shape), False)
        if not self.count:
            return TensorStats(list(shape), True, 0.0, 0.0, 0.0)
        rms = self.largest * math.sqrt(self.squares / self.count)
        return TensorStats(list(shape), True, rms, self.largest * (self.total / self.count), self.largest)


def _of_piece(piece: np.ndarray) -> RunningStats:
    """Of a float64 array, which is overwritten."""
    np.abs(piece, out=piece)
    largest = float(piece.max())
    if not math.isfinite(largest):
        return RunningStats(piece.size, finite=False)
    if largest == 0.0:
        return RunningStats(piece.size)
    scale = 1.0
    if largest < 1e-290:  # its reciprocal would overflow
        scale = 1e300
        piece *= scale
    piece *= 1 / (largest * scale)
    return RunningStats(piece.size, largest, float(np.dot(piece, piece)), float(piece.sum()))


def describe(value: np.ndarray | Sketch) -> TensorStats:
    """A tensor by itself, or what its sketch tells of it."""
    if isinstance(value, Sketch):
        return RunningStats.of(value.values).stats(value.shape)
    value = np.asarray(value)
    return RunningStats.of(value).stats(value.shape)


def measure_error(value: np.ndarray, truth: np.ndarray | Sketch) -> TensorStats:
    """err(value, truth) as the verdicts use it: RMS and maximum of value - truth, computed in float64; of the sketch of
    that difference, if there is only a sketch of the truth.

    Tensors of different shape are not compared, even if they broadcast: only the shape is given.
    """
    value, truth = np.asarray(value), truth if isinstance(truth, Sketch) else np.asarray(truth)
    if value.shape != truth.shape:
        return TensorStats(list(value.shape), bool(np.isfinite(value).all()))
    return RunningStats.of(value, truth).stats(value.shape)
