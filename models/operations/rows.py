"""Reorder a tensor's rows: split heads, sort by bucket, look at neighbours, and the inverses.

Seen as a matrix with one row per (batch, position, head), all of these pick rows. A row gather copies whole rows;
Paddle's transpose moves single numbers and is 20 times slower on CPU (measured, 32768 rows of 64 float32: 15 ms
against 0.7). Its gradient is a gather again, with the inverse order, where autograd would scatter and add: faster,
and on a GPU the same to the last bit from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import NamedTuple

import paddle
from paddle.autograd import PyLayer

from models.operations import compiled


class Order(NamedTuple):
    """The source row of each result row, and the place of each source row.

    Attributes:
        index: int64 (rounds * rows,).
        inverse: int64 (rounds, rows): the place of source row j in round i.
    """

    index: paddle.Tensor
    inverse: paddle.Tensor

    def inverted(self) -> Order:
        """The inverse; only for a plain permutation (one round)."""
        return Order(self.inverse.flatten(), self.index.unsqueeze(0))


class _Gather(PyLayer):
    @staticmethod
    def forward(ctx, rows, order):
        ctx.order = order
        if compiled.suits(rows):
            return compiled.gather_rows(rows, order.index)
        return paddle.gather(rows, order.index)

    @staticmethod
    def backward(ctx, grad):
        if compiled.suits(grad):
            return compiled.gather_rows(grad, ctx.order.inverse)
        total = paddle.gather(grad, ctx.order.inverse[0])  # (rows, width)
        for places in ctx.order.inverse[1:]:
            total = total + paddle.gather(grad, places)
        return total


def reorder(rows: paddle.Tensor, order: Order) -> paddle.Tensor:
    """The rows of ``rows`` (rows, width) in ``order``: (rounds * rows, width)."""
    return _Gather.apply(rows, order) if paddle.in_dynamic_mode() else paddle.gather(rows, order.index)


def kept_if_eager(make: Callable[..., Order]) -> Callable[..., Order]:
    """Cache the orders of the last sizes, except a static graph's: they belong to it, with sizes maybe unknown."""
    kept = lru_cache(maxsize=16)(make)

    @wraps(make)
    def made(*sizes: int) -> Order:
        return kept(*sizes) if paddle.in_dynamic_mode() else make(*sizes)

    return made


@kept_if_eager
def heads_first(batch: int, length: int, heads: int) -> Order:
    """From rows ordered (batch, position, head), as a projection gives them, to (batch, head, position)."""
    places = paddle.arange(batch * length * heads, dtype="int64")
    index = places.reshape([-1, length, heads]).transpose([0, 2, 1]).flatten()
    inverse = places.reshape([-1, heads, length]).transpose([0, 2, 1]).flatten()
    return Order(index.contiguous(), inverse.contiguous().unsqueeze(0))


@kept_if_eager
def adjacent_chunks(rows: int, chunks: int, before: int, after: int) -> Order:
    """From chunks (rows * chunks, .) to each chunk with its neighbours (rows * chunks * parts, .).

    The chunks of a row form a ring: the first one's predecessor is the last. A neighbour farther away than the ring is
    long is the chunk itself, not one further round: the reference shifts the ring by two slices, of which one that
    begins beyond the end is empty.
    """
    offsets = paddle.arange(-before, after + 1)
    offsets = paddle.where(offsets.abs() > chunks, paddle.zeros_like(offsets), offsets)
    place = paddle.arange(chunks).unsqueeze(1)
    first = (paddle.arange(rows) * chunks).reshape([-1, 1, 1])
    index = (first + (place + offsets) % chunks).flatten()  # (rows, chunks, parts)
    # Chunk j stands as part p of the chunk that lies offsets[p] before it.
    holder = (first + (place - offsets) % chunks) * (before + 1 + after) + paddle.arange(before + 1 + after)
    return Order(index, holder.transpose([2, 0, 1]).reshape([before + 1 + after, -1]))
