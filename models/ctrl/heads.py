"""Split the last axis of a projection into heads, and merge the heads again.

On a CPU, both gather rows (:mod:`models.operations.rows`). There, a transposed tensor is a view, which each following
operation copies number by number, also in the backward: 1.1 ms instead of 0.02 for 4 x 128 x 320 float32 numbers.
"""

from __future__ import annotations

from paddle import Tensor

from models.operations.ops import is_composed
from models.operations.rows import heads_first, reorder


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the last axis into heads: (B, T, num_heads * depth) -> (B, num_heads, T, depth)."""
    batch, length, depth = x.shape[0], x.shape[1], x.shape[2] // num_heads
    if length == 1:
        return x.reshape([batch, num_heads, 1, depth])
    if not is_composed(x):
        return x.reshape([batch, length, num_heads, depth]).transpose([0, 2, 1, 3])
    rows = reorder(x.reshape([-1, depth]), heads_first(batch, length, num_heads))
    return rows.reshape([batch, num_heads, length, depth])


def merge_heads(x: Tensor) -> Tensor:
    """Move the axis of heads behind the positions: (B, num_heads, T, depth) -> (B, T, num_heads, depth)."""
    batch, num_heads, length, depth = x.shape
    if length == 1:
        return x.reshape([batch, 1, num_heads, depth])
    if not is_composed(x):
        return x.transpose([0, 2, 1, 3])
    rows = reorder(x.reshape([-1, depth]), heads_first(batch, length, num_heads).invert())
    return rows.reshape([batch, length, num_heads, depth])
