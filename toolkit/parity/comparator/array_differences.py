"""Comparison of a message's array, which is read block by block, with an array of the reference."""

from __future__ import annotations

import numpy as np

from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.measure.error_stats import PIECE, RunningStats, TensorStats
from toolkit.parity.measure.sketch import Sketch


def difference(message: Message, true_value: np.ndarray | Sketch | None) -> TensorStats:
    """Return the statistics of the difference of a message's array from its truth, in float64.

    Without a truth of the same shape, the result has only the shape and whether all elements are finite. See
    :func:`.error_stats.measure_error`.

    Args:
        message: message with the port's array.
        true_value: R64's array or its sketch; None if R64 has no such tensor.
    """
    if true_value is None or true_value.shape != message.shape:
        return TensorStats(list(message.shape), RunningStats.of_pieces(message.blocks()).finite)
    return RunningStats.of_pieces(message.blocks(), true_value).stats(message.shape)


def largest_difference(message: Message, reference_tensors: TensorFile) -> float:
    """Return the largest difference of a message's array from the reference's tensor of the same name.

    The result is infinite if the shapes differ or an element is not finite.

    Args:
        message: message with the port's array.
        reference_tensors: the reference's tensors by name.
    """
    if reference_tensors.shape(message.name) != message.shape:
        return float("inf")
    stats = RunningStats()
    for block, piece in zip(message.blocks(), reference_tensors.pieces(message.name, PIECE), strict=True):
        stats.add(RunningStats.of(block, piece))
    return stats.largest if stats.finite else float("inf")


def differing(message: Message, reference_array: np.ndarray) -> int:
    """Return the number of elements of a message's array that differ, as float32, from the reference's array.

    Args:
        message: message with the port's array.
        reference_array: array of the reference, of the same shape.
    """
    flat, start, count = reference_array.reshape(-1), 0, 0
    for block in message.blocks():
        count += int((block.astype(np.float32, copy=False) != flat[start : start + len(block)]).sum())
        start += len(block)
    return count
