"""Removes a limit of Paddle's CPU kernels from the losses of a user's port.

In a cross entropy or a log-softmax, these kernels clip each score at 64 below the largest score. They do so in every
dtype. A correct port then has a smaller loss than its reference, and its author cannot change that. Probabilities
change by 2e-28 at most, so the gradients of the kernels are used unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import paddle

from toolkit.parity.families.pair.replaced_functions import calling_line

#: Largest distance of a score below the largest score in Paddle's kernels, which clip larger distances.
LIMIT = 64.0
#: Source lines of the port where the limit was removed, `file:line`.
limited_lines: list[str] = []


def remove_limit(name: str, kernel: Callable) -> Callable:
    """Return a function of ``paddle._C_ops`` without the limit, or ``kernel`` itself if it has no limit.

    Args:
        name: name of the function in ``paddle._C_ops``.
        kernel: the function.
    """
    if name not in _EXACT_FUNCTIONS:
        return kernel

    @functools.wraps(kernel)
    def call(scores: paddle.Tensor, *args: Any) -> Any:
        has_numbers = paddle.in_dynamic_mode() and scores.size > 0  # a graph that is only traced has none
        return _EXACT_FUNCTIONS[name](kernel, scores, *args) if has_numbers else kernel(scores, *args)

    return call


def _log_softmax(kernel: Callable, scores: paddle.Tensor, axis: int) -> paddle.Tensor:
    """Return the log-softmax of scores along an axis without the limit.

    Args:
        kernel: Paddle's function with the limit.
        scores: scores, of any shape.
        axis: axis of the classes.
    """
    logarithms = kernel(scores, axis)
    with paddle.no_grad():
        distances = scores.max(axis, keepdim=True) - scores
        exact_logarithms = logarithms.max(axis, keepdim=True) - distances
    return _exact_beyond_limit(logarithms, exact_logarithms, distances)


def _cross_entropy(
    kernel: Callable,
    scores: paddle.Tensor,
    labels: paddle.Tensor,
    is_soft: bool,
    uses_softmax: bool,
    is_stable: bool,
    ignored_label: int,
    axis: int,
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the probabilities and losses of Paddle's ``cross_entropy_with_softmax`` without its limit of scores.

    The kernel clips each score at :data:`LIMIT` below the largest score.

    Args:
        kernel: Paddle's function with the limit.
        scores: scores of the classes, or probabilities if ``uses_softmax`` is False.
        labels: class indices, with size 1 along ``axis``, or class probabilities in the shape of ``scores``.
        is_soft: whether the labels are class probabilities.
        uses_softmax: whether the kernel applies softmax. Without softmax there is nothing to correct.
        is_stable: whether the kernel subtracts the largest score first.
        ignored_label: label of the positions whose loss is 0.
        axis: axis of the classes.
    """
    probabilities, losses = kernel(scores, labels, is_soft, uses_softmax, is_stable, ignored_label, axis)
    if not uses_softmax:
        return probabilities, losses
    with paddle.no_grad():
        largest, normalizer = scores.max(axis, keepdim=True), -probabilities.max(axis, keepdim=True).log()
        if is_soft:
            distances = paddle.where(labels != 0, largest - scores, paddle.zeros_like(scores))
            exact_losses = (labels * (distances + normalizer)).sum(axis, keepdim=True)
            distances = distances.max(axis, keepdim=True)
        else:
            is_counted = labels != ignored_label
            classes = paddle.where(is_counted, labels, paddle.zeros_like(labels))
            distances = largest - scores.take_along_axis(classes, axis)
            distances = paddle.where(is_counted, distances, paddle.zeros_like(distances))
            exact_losses = distances + normalizer
    return probabilities, _exact_beyond_limit(losses, exact_losses, distances)


#: Function without the limit, by the name of the kernel with the limit. Its first argument is this kernel.
_EXACT_FUNCTIONS: Mapping[str, Callable] = {"cross_entropy_with_softmax": _cross_entropy, "log_softmax": _log_softmax}


def _exact_beyond_limit(
    kernel_values: paddle.Tensor, exact_values: paddle.Tensor, distances: paddle.Tensor
) -> paddle.Tensor:
    """Return a kernel's values with the kernel's gradient, but exact values beyond the limit.

    Args:
        kernel_values: values that the kernel has computed.
        exact_values: values without the limit, in the same shape.
        distances: distance of the farthest score in each value from the largest score, in the same shape.
    """
    with paddle.no_grad():
        is_limited = paddle.logical_and(distances > LIMIT, kernel_values != exact_values)
        if not is_limited.any():
            return kernel_values
        missing = paddle.where(is_limited, exact_values - kernel_values, paddle.zeros_like(kernel_values))
    line = calling_line(short=True)
    if line and line not in limited_lines:
        limited_lines.append(line)
    return kernel_values + missing
