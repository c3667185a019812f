"""Statistics of a tensor, or of the difference of two tensors: RMS, mean, maximum, and whether all elements are finite.

They are computed in float64, piece by piece, because a single gradient may need 2.5 GB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from toolkit.parity.measure.sketch import Sketch

#: Number of elements that are processed at a time: few enough to stay in a processor's cache.
PIECE = 2**18
#: Number of rows of a large matrix that are processed at a time.
ROWS = 4096


@dataclass
class TensorStats:
    """Statistics of a tensor, or of the difference of two tensors.

    Attributes:
        shape: shape of the tensor.
        finite: whether all elements are finite.
        rms, mean, max: root mean square, mean and maximum of the magnitudes; 0 for an empty tensor. None if the tensor
            is not
        finite, or if the two tensors of a difference have different shapes.
        missing: whether the tensor does not exist.
    """

    shape: list[int]
    finite: bool = True
    rms: float | None = None
    mean: float | None = None
    max: float | None = None
    missing: bool = False


@dataclass
class TensorRecord(TensorStats):
    """Statistics of a tensor of R64, and the distance of the reference's other runs from it: the noise baseline.

    Attributes:
        noise, noise_max: RMS and maximum of the difference from R64 in each run, by dtype; None for a difference that
            is not finite.
    """

    noise: dict[str, list[float | None]] = field(default_factory=dict)
    noise_max: dict[str, list[float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, stats: TensorStats) -> TensorRecord:
        """Return the record of a tensor of R64 without noise, given the tensor's statistics."""
        return cls(**vars(stats))

    def add_noise(self, dtype: str, difference_stats: TensorStats) -> None:
        """Add the distance of another run of the reference from R64 to the noise.

        Args:
            dtype: dtype of the run.
            difference_stats: statistics of the difference.
        """
        self.noise.setdefault(dtype, []).append(difference_stats.rms)
        self.noise_max.setdefault(dtype, []).append(difference_stats.max)


@dataclass
class RunningStats:
    """Statistics of the elements that have been added so far.

    The sums are relative to the largest magnitude, so that no square overflows.

    Attributes:
        count: number of the elements.
        largest: largest magnitude.
        squares: sum of the squares, divided by the square of ``largest``.
        total: sum of the magnitudes, divided by ``largest``.
        finite: whether all elements are finite.
    """

    count: int = 0
    largest: float = 0.0
    squares: float = 0.0
    total: float = 0.0
    finite: bool = True

    @classmethod
    def of(cls, tensor: np.ndarray, true_value: np.ndarray | Sketch | None = None) -> RunningStats:
        """Return the statistics of a tensor, or of its difference from a true tensor of the same shape."""
        flat = np.ravel(tensor)
        return cls.of_pieces((flat[start : start + PIECE] for start in range(0, flat.size, PIECE)), true_value)

    @classmethod
    def of_pieces(cls, pieces: Iterable[np.ndarray], true_value: np.ndarray | Sketch | None = None) -> RunningStats:
        """Return the statistics of a tensor that is given in pieces, or of its difference from a true tensor.

        Args:
            pieces: consecutive parts of the flattened tensor, at most :data:`PIECE` elements each.
            true_value: the true tensor, or its sketch. A sketch gives the statistics of the difference's sketch.
        """
        if isinstance(true_value, Sketch):
            return cls.of(Sketch.of_pieces(pieces, true_value.shape).values, true_value.values)
        stats, start = cls(), 0
        flat_truth = None if true_value is None else np.ravel(true_value)
        buffer = np.empty(0)
        for elements in pieces:
            if len(elements) > len(buffer):
                buffer = np.empty(len(elements))  # shared by all pieces, so it stays in the cache; the first is largest
            difference, end = buffer[: len(elements)], start + len(elements)
            if flat_truth is not None and elements.dtype == np.float64:
                np.subtract(elements, flat_truth[start:end], out=difference)
            else:
                np.copyto(difference, elements)
                if flat_truth is not None:
                    difference -= flat_truth[start:end]
            stats.add(_measure_piece(difference))
            start = end
        return stats

    def add_rows(
        self, rows: np.ndarray, start: int, skip_rows: np.ndarray, true_value: np.ndarray | None = None
    ) -> None:
        """Add some rows of a matrix, or their difference from the true rows.

        Args:
            rows: consecutive rows of the matrix, (rows, columns).
            start: index of the first of these rows in the matrix.
            skip_rows: indices of the rows of the matrix that are not added.
            true_value: the true rows, of the same shape.
        """
        is_inside = (skip_rows >= start) & (skip_rows < start + len(rows))
        if is_inside.any():
            other_rows = np.setdiff1d(np.arange(len(rows)), skip_rows[is_inside] - start, assume_unique=True)
            rows, true_value = rows[other_rows], None if true_value is None else true_value[other_rows]
        self.add(RunningStats.of(rows, true_value))

    def add(self, stats: RunningStats) -> None:
        """Add the elements of other statistics to these."""
        self.count += stats.count
        self.finite = self.finite and stats.finite
        largest = max(self.largest, stats.largest)
        if largest > 0:
            own_scale, scale = self.largest / largest, stats.largest / largest
            self.squares = self.squares * own_scale**2 + stats.squares * scale**2
            self.total = self.total * own_scale + stats.total * scale
        self.largest = largest

    def stats(self, shape: tuple[int, ...]) -> TensorStats:
        """Return the statistics of all added elements, as a tensor of this shape."""
        if not self.finite:
            return TensorStats(list(shape), False)
        if not self.count:
            return TensorStats(list(shape), True, 0.0, 0.0, 0.0)
        rms = self.largest * math.sqrt(self.squares / self.count)
        return TensorStats(list(shape), True, rms, self.largest * (self.total / self.count), self.largest)


def _measure_piece(piece: np.ndarray) -> RunningStats:
    """Return the statistics of a float64 array, whose memory is overwritten."""
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


def describe(tensor_or_sketch: np.ndarray | Sketch) -> TensorStats:
    """Return the statistics of a tensor; for a sketch, estimates for the tensor that it represents."""
    if isinstance(tensor_or_sketch, Sketch):
        return RunningStats.of(tensor_or_sketch.values).stats(tensor_or_sketch.shape)
    tensor_or_sketch = np.asarray(tensor_or_sketch)
    return RunningStats.of(tensor_or_sketch).stats(tensor_or_sketch.shape)


def measure_error(tensor: np.ndarray, true_value: np.ndarray | Sketch) -> TensorStats:
    """Return the statistics of ``tensor`` - ``true_value`` in float64: the error that the verdicts judge.

    If only a sketch of the truth exists, the result is the estimate of the difference's sketch. Tensors with different
    shapes are not compared, even if they broadcast: then the result has only the shape.

    Args:
        tensor: tensor of the port or of another run.
        true_value: tensor of R64, or its sketch.
    """
    tensor, true_value = np.asarray(tensor), true_value if isinstance(true_value, Sketch) else np.asarray(true_value)
    if tensor.shape != true_value.shape:
        return TensorStats(list(tensor.shape), bool(np.isfinite(tensor).all()))
    return RunningStats.of(tensor, true_value).stats(tensor.shape)
