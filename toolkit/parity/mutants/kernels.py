"""Faults of the parts that all ports share: operations, linear maps, the loss."""

from __future__ import annotations

from typing import Any

from toolkit.parity.mutants.fault import Modules, around


def norm_backward_without_mean(port: Modules) -> list[tuple[Any, str, Any]]:
    """Leave the mean of the gradient out of layer normalisation's backward; those of gain and bias are right."""
    right = port.ops._LayerNorm.backward

    def backward(ctx, grad):
        x, gain = ctx.saved_tensor()
        _, of_gain, of_bias = right(ctx, grad)
        normed, scale = port.ops._normed(x, ctx.epsilon)
        inner = grad * gain
        return (inner - normed * (inner * normed).mean(-1, keepdim=True)) * scale, of_gain, of_bias

    return [(port.ops._LayerNorm, "backward", staticmethod(backward))]


def bias_gradient_of_whole_blocks(port: Modules) -> list[tuple[Any, str, Any]]:
    """Leave the rows beyond the last whole block of 100 out of the gradient of a bias."""
    right, block = port.ops._column_sums, 100

    def column_sums(matrix):
        return right(matrix[: len(matrix) // block * block or len(matrix)])

    return [(port.ops, "_column_sums", column_sums)]


def softmax_in_float32(port: Modules) -> list[tuple[Any, str, Any]]:
    """Compute the softmax of attention in float32 whatever the input is."""
    right = port.ops._softmax
    return [(port.ops, "_softmax", lambda scores: right(scores.astype("float32")).astype(scores.dtype))]


def bias_dropped(port: Modules) -> list[tuple[Any, str, Any]]:
    """Leave out the bias of linear maps."""
    return around(port.ops.Linear, "forward", lambda original, self, x: port.paddle.matmul(x, self.weight))


def square_untransposed(port: Modules) -> list[tuple[Any, str, Any]]:
    """Load square weights as they are stored."""

    def to_paddle(value, role):
        square = value.ndim == 2 and value.shape[0] == value.shape[1]
        return value.T if role == "linear" and not square else value

    return [(port.port_weights, "to_paddle", to_paddle)]


def labels_smoothed(port: Modules) -> list[tuple[Any, str, Any]]:
    """Smooth labels by a thousandth."""
    plain = port.losses.cross_entropy

    def smoothed(logits, *labels):
        uniform = -port.paddle.nn.functional.log_softmax(logits).mean()
        return 0.999 * plain(logits, *labels) + 0.001 * uniform

    return [(port.losses, "cross_entropy", smoothed)]
