"""Faults of the operations that both ports are made of (``models/operations/ops.py``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def norm_backward_without_mean(port: SimpleNamespace) -> list[tuple[Any, str, Any]]:
    """Leave the mean of the gradient out of layer normalisation's backward; those of gain and bias are right."""
    right = port.ops._LayerNorm.backward

    def backward(ctx, grad):
        x, gain = ctx.saved_tensor()
        _, of_gain, of_bias = right(ctx, grad)
        normed, scale = port.ops._normed(x, ctx.epsilon)
        inner = grad * gain
        return (inner - normed * (inner * normed).mean(-1, keepdim=True)) * scale, of_gain, of_bias

    return [(port.ops._LayerNorm, "backward", staticmethod(backward))]


def bias_gradient_of_whole_blocks(port: SimpleNamespace) -> list[tuple[Any, str, Any]]:
    """Leave the rows beyond the last whole block of 100 out of the gradient of a bias."""
    right, block = port.ops._column_sums, 100

    def column_sums(matrix):
        return right(matrix[: len(matrix) // block * block or len(matrix)])

    return [(port.ops, "_column_sums", column_sums)]


def softmax_in_float32(port: SimpleNamespace) -> list[tuple[Any, str, Any]]:
    """Compute the softmax of attention in float32 whatever the input is."""
    right = port.ops._softmax
    return [(port.ops, "_softmax", lambda scores: right(scores.astype("float32")).astype(scores.dtype))]
