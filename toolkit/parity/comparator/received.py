"""Distances of arrays that come block by block."""

from __future__ import annotations

import numpy as np

from toolkit.parity.job.handover import Message
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.error_stats import PIECE, RunningStats, TensorStats
from toolkit.parity.measure.sketch import Sketch


def difference(message: Message, truth: np.ndarray | Sketch | None) -> TensorStats:
    """Compare an array with its truth block by block (see :func:`.error_stats.measure_error`).

    Without a truth of the same shape, return only the shape and whether all elements are finite.
    """
    if truth is None or truth.shape != message.shape:
        return TensorStats(list(message.shape), RunningStats.of_pieces(message.blocks()).finite)
    return RunningStats.of_pieces(message.blocks(), truth).stats(message.shape)


def largest_difference(message: Message, reference: TensorFile) -> float:
    """Largest difference from the tensor of this name; infinite if shapes differ or something is not finite."""
    if reference.shape(message.name) != message.shape:
        return float("inf")
    stats = RunningStats()
    for block, piece in zip(message.blocks(), reference.pieces(message.name, PIECE), strict=True):
        stats.add(RunningStats.of(block, piece))
    return stats.largest if stats.finite else float("inf")


def differing(message: Message, reference: np.ndarray) -> int:
    """Return the number of float32 values that differ from an array of the same shape."""
    flat, start, count = reference.reshape(-1), 0, 0
    for block in message.blocks():
        count += int((block.astype(np.float32, copy=False) != flat[start : start + len(block)]).sum())
        start += len(block)
    return count
