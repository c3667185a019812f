"""Split a projection into heads, and merge them again.

On a CPU it is a gather of rows (:mod:`models.operations.rows`). A transposed tensor is a view there, which every
operation on contiguous numbers copies one by one, again in the backward: 1.1 ms against 0.02 for 4 x 128 x 320 float32.
"""

from __future__ import annotations

from paddle import Tensor

from models.operations.ops import is_composed
from models.operations.rows import heads_first, reorder


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads * depth) -> (B, heads, T, depth)."""
    batch, length, depth = x.shape[0], x.shape[1], x.shape[2] // heads
    if length == 1:
        return x.reshape([batch, heads, 1, depth])
    if not is_composed(x):
        return x.reshape([batch, length, heads, depth]).transpose([0, 2, 1, 3])
    rows = reorder(x.reshape([-1, depth]), heads_first(batch, length, heads))
    return rows.reshape([batch, heads, length, depth])


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, depth) -> (B, T, heads, depth)."""
    batch, heads, length, depth = x.shape
    if length == 1:
        return x.reshape([batch, 1, heads, depth])
    if not is_composed(x):
        return x.transpose([0, 2, 1, 3])
    rows = reorder(x.reshape([-1, depth]), heads_first(batch, length, heads).inverted())
    return rows.reshape([batch, length, heads, depth])
