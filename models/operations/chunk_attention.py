"""Attention of chunks to their neighbours as one operation: a compiled loop whose scores never leave the processor's
caches. Only the inputs are kept for the backward, which computes them again (Dao et al. 2022, section 3.1).
"""

from __future__ import annotations

from typing import NamedTuple

import paddle
from paddle.autograd import PyLayer

from models.operations import compiled


class Masks(NamedTuple):
    """Which keys count for a query, for N rows of n chunks of C positions; the queries of a chunk see K keys.

    Attributes:
        order: int64 (n, K / C): the chunks whose keys a chunk sees.
        places: int64 (N, n, C): where in the text queries and keys stand; None if no mask asks.
        kept: bool (N, n, C): which keys are no padding; None if all.
        causal: whether keys that stand later than the query are masked.
        itself: whether the key that stands where the query does is masked.
        masked, self_masked: the scores of padding and of later keys, and of the query's own; the second wins.
        drawn: bool (N, n, C, K): which weights dropout keeps; None if all.
        rate: the share that it drops.
    """

    order: paddle.Tensor
    places: paddle.Tensor | None
    kept: paddle.Tensor | None
    causal: bool
    itself: bool
    masked: float
    self_masked: float
    drawn: paddle.Tensor | None
    rate: float


class _ChunkAttention(PyLayer):
    @staticmethod
    def forward(ctx, query, key, value, masks, with_normaliser):
        context, normaliser = compiled.attend_chunks(query, key, value, *masks, with_normaliser)
        ctx.masks = masks
        ctx.wanted = [not one.stop_gradient for one in (query, key, value)]
        ctx.save_for_backward(query, key, value)
        return (context, normaliser) if with_normaliser else context

    @staticmethod
    def backward(ctx, grad, grad_normaliser=None):
        found = compiled.attend_chunks_backward(*ctx.saved_tensor(), *ctx.masks, grad, grad_normaliser)
        return tuple(one if wanted else None for one, wanted in zip(found, ctx.wanted, strict=True))


def chunk_attention(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, masks: Masks, with_normaliser: bool
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """Attend: (N, n, C, D) each.

    Returns:
        (N, n, C, D); and the log of each query's normaliser, (N, n, C, 1), or None.
    """
    found = _ChunkAttention.apply(query, key, value, masks, with_normaliser)
    return found if with_normaliser else (found, None)
