"""Replays R64's discrete choices in a user's port: ``topk``, ``argmax``, ``argmin``, ``argsort`` and ``sort``.

Two scores that are equal up to rounding may come in either order. Each order leads to other results, such as another
expert. So the port's choice is sent to the comparator, which compares it separately. The port then continues with R64's
choice. As in :mod:`.replaced_functions`, Paddle's functions are replaced once, before the user's file is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import paddle

from toolkit.parity.families.pair import replaced_functions

#: Modules and classes that provide Paddle's functions of discrete choices.
OWNERS = (paddle, paddle.tensor, paddle.tensor.search, paddle.Tensor)


def install() -> None:
    """Replace Paddle's functions of discrete choices, before a user's file is imported."""
    for owner in OWNERS:
        replaced_functions.replace_function(owner, "topk", _topk)
        replaced_functions.replace_function(owner, "argmax", _extreme(True))
        replaced_functions.replace_function(owner, "argmin", _extreme(False))
        replaced_functions.replace_function(owner, "argsort", _argsort)
        replaced_functions.replace_function(owner, "sort", _sort)


def _find_reference_indices(x: paddle.Tensor, own: paddle.Tensor, axis: int, descending: bool) -> paddle.Tensor | None:
    """Return R64's indices along an axis of ``x``; None if they equal the port's, or are not recorded.

    Args:
        x: scores, of any shape.
        own: indices that the port has chosen along ``axis``.
        axis: axis of the choice.
        descending: whether larger scores come first.
    """
    draws = replaced_functions.draws()
    if draws is None:
        return None
    indices = draws.replay_choice(_move_axis_last(x, axis), _move_axis_last(own, axis), descending=descending)
    return None if indices is None else paddle.moveaxis(indices, -1, axis) if indices.ndim > 1 else indices


def _move_axis_last(x: paddle.Tensor, axis: int) -> paddle.Tensor:
    """Return a tensor with one axis moved to the end."""
    return x if axis in (-1, x.ndim - 1) else paddle.moveaxis(x, axis, -1)


def _is_choice(x: Any) -> bool:
    """Return whether ``x`` has scores whose order rounding may change, while draws are recorded or replayed.

    The scores are floating-point numbers, since integers are exact.
    """
    return (
        replaced_functions.draws() is not None and isinstance(x, paddle.Tensor) and x.is_floating_point() and x.ndim > 0
    )


def _bind_arguments(original: Callable, *args: Any, **options: Any) -> dict[str, Any]:
    """Return the arguments of a call of ``original`` by Paddle's parameter names, with defaults.

    The names ``input`` and ``dim`` of torch are accepted for ``x`` and ``axis``.
    """
    if "input" in options:
        options["x"] = options.pop("input")
    if "dim" in options:
        options["axis"] = options.pop("dim")
    call = inspect.signature(original).bind(*args, **options)
    call.apply_defaults()
    return call.arguments


def _topk(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``topk`` that uses R64's indices."""

    def topk(*args: Any, **options: Any) -> Any:
        values, own = original(*args, **options)
        arguments = _bind_arguments(original, *args, **options)
        x, axis = arguments["x"], -1 if arguments["axis"] is None else arguments["axis"]
        if not _is_choice(x):
            return values, own
        indices = _find_reference_indices(x, own, axis, arguments["largest"])
        return (values, own) if indices is None else (paddle.take_along_axis(x, indices, axis), indices)

    return topk


def _extreme(largest: bool) -> Callable[[Callable], Callable]:
    """Return a function that creates a replacement of Paddle's ``argmax`` or ``argmin``, which uses R64's indices.

    Args:
        largest: True for ``argmax``, False for ``argmin``.
    """

    def make(original: Callable) -> Callable:
        def extreme(*args: Any, **options: Any) -> paddle.Tensor:
            own = original(*args, **options)
            arguments = _bind_arguments(original, *args, **options)
            x, axis = arguments["x"], arguments["axis"]
            if not _is_choice(x):
                return own
            scores, choice_axis = (x.flatten(), 0) if axis is None else (x, axis)
            own_indices = own.reshape([1]) if axis is None else own if arguments["keepdim"] else own.unsqueeze(axis)
            indices = _find_reference_indices(scores, own_indices, choice_axis, largest)
            return own if indices is None else indices.reshape(own.shape).astype(own.dtype)

        return extreme

    return make


def _argsort(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``argsort`` that uses R64's indices."""

    def argsort(*args: Any, **options: Any) -> paddle.Tensor:
        own = original(*args, **options)
        arguments = _bind_arguments(original, *args, **options)
        if not _is_choice(arguments["x"]):
            return own
        indices = _find_reference_indices(arguments["x"], own, arguments["axis"], arguments["descending"])
        return own if indices is None else indices

    return argsort


def _sort(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``sort`` that sorts in R64's order."""

    def sort(*args: Any, **options: Any) -> paddle.Tensor:
        own = original(*args, **options)
        arguments = _bind_arguments(original, *args, **options)
        x, axis, descending = arguments["x"], arguments["axis"], arguments["descending"]
        if not _is_choice(x):
            return own
        order = getattr(paddle.argsort, "paddle_original", paddle.argsort)(x.detach(), axis, descending)
        indices = _find_reference_indices(x, order, axis, descending)
        return own if indices is None else paddle.take_along_axis(x, indices, axis)

    return sort
