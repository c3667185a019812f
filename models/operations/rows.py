"""Gather rows of a tensor to split heads, sort by bucket, or concatenate neighbors, and to undo these.

The tensor is a matrix with a row for each batch, position and head. A gather copies whole rows. Paddle's transpose
moves single numbers and is 20 times slower on a CPU (measured on 32,768 rows of 64 float32 numbers: 15 and 0.7 ms). The
gradient of a gather is a gather with the inverse order, where autograd would scatter and add. The gather is faster, and
on a GPU its bits do not change from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import NamedTuple

import paddle
from paddle.autograd import PyLayer

from models.operations import compiled


def batch_size(x: paddle.Tensor) -> int | paddle.Tensor:
    """Return the size of the first axis: a number, or an int64 tensor if it is unknown in a static graph."""
    size = x.shape[0]
    return size if size >= 0 else paddle.shape(x)[0].astype("int64")


class Order(NamedTuple):
    """An order of rows, which may contain each row several times (in several rounds).

    Attributes:
        index: source row of each result row, int64 (rounds * rows,).
        inverse: result row of each source row in each round, int64 (rounds, rows).
    """

    index: paddle.Tensor
    inverse: paddle.Tensor

    def invert(self) -> Order:
        """Return the inverse order; only a permutation (one round) has one."""
        return Order(self.inverse.flatten(), self.index.unsqueeze(0))


class _Gather(PyLayer):
    @staticmethod
    def forward(ctx, rows, order):
        """Return the rows in the given order.

        Args:
            ctx: context that keeps the order for the backward.
            rows: matrix, (rows, width).
            order: order of the result's rows, with its inverse.
        """
        ctx.order = order
        if compiled.supports_compiled(rows):
            return compiled.gather_rows(rows, order.index)
        return paddle.gather(rows, order.index)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the rows: the sum over all copies of a row."""
        if compiled.supports_compiled(grad):
            return compiled.gather_rows(grad, ctx.order.inverse)
        total = paddle.gather(grad, ctx.order.inverse[0])  # (rows, width)
        for result_rows in ctx.order.inverse[1:]:
            total = total + paddle.gather(grad, result_rows)
        return total


def reorder(rows: paddle.Tensor, row_order: Order) -> paddle.Tensor:
    """Gather the rows of a matrix in an order: (rows, width) -> (rounds * rows, width)."""
    return _Gather.apply(rows, row_order) if paddle.in_dynamic_mode() else paddle.gather(rows, row_order.index)


def cache_if_eager(make_order: Callable[..., Order]) -> Callable[..., Order]:
    """Cache the orders of the last 16 sizes, except in a static graph, whose orders belong to the graph."""
    cached_make_order = lru_cache(maxsize=16)(make_order)

    @wraps(make_order)
    def make_or_reuse_order(*sizes: int) -> Order:
        return cached_make_order(*sizes) if paddle.in_dynamic_mode() else make_order(*sizes)

    return make_or_reuse_order


@cache_if_eager
def heads_first(num_texts: int, length: int, heads: int) -> Order:
    """Return the order that sorts rows by (batch, head, position), from (batch, position, head).

    Args:
        num_texts: number of texts.
        length: number of positions of each text.
        heads: number of heads.
    """
    rows = paddle.arange(num_texts * length * heads, dtype="int64")
    index = rows.reshape([-1, length, heads]).transpose([0, 2, 1]).flatten()
    inverse = rows.reshape([-1, heads, length]).transpose([0, 2, 1]).flatten()
    return Order(index.contiguous(), inverse.contiguous().unsqueeze(0))


@cache_if_eager
def adjacent_chunks(rows: int, chunks: int, before: int, after: int) -> Order:
    """Return the order of each chunk with its neighbors: (rows * chunks, .) -> (rows * chunks * parts, .).

    The chunks of a row form a ring: the last chunk precedes the first. A neighbor whose distance is larger than the
    ring is the chunk itself, as in the reference, which shifts the ring by two slices, and a slice from beyond the end
    is empty.

    Args:
        rows: number of rings.
        chunks: number of chunks of each ring.
        before: number of preceding neighbors.
        after: number of following neighbors.
    """
    offsets = paddle.arange(-before, after + 1)
    offsets = paddle.where(offsets.abs() > chunks, paddle.zeros_like(offsets), offsets)
    chunk = paddle.arange(chunks).unsqueeze(1)
    first = (paddle.arange(rows) * chunks).reshape([-1, 1, 1])
    index = (first + (chunk + offsets) % chunks).flatten()  # (rows, chunks, parts)
    # Chunk j is part p of the chunk at distance -offsets[p].
    parts = before + 1 + after
    result_row = (first + (chunk - offsets) % chunks) * parts + paddle.arange(parts)
    return Order(index, result_row.transpose([2, 0, 1]).reshape([parts, -1]))
