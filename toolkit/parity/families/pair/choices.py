"""Replays R64's discrete choices in a user's port: ``topk``, ``argmax``, ``argmin``, ``argsort`` and ``sort``.

Two scores that are equal up to rounding may come in either order. Each order leads to other results, such as another
expert. So the port's choice is sent to the comparator, which compares it separately. The port then continues with R64's
choice. As in :mod:`.replaced`, Paddle's functions are replaced once, before the user's file is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import paddle

from toolkit.parity.families.pair import replaced

#: Modules and classes that provide Paddle's functions of discrete choices.
OWNERS = (paddle, paddle.tensor, paddle.tensor.search, paddle.Tensor)


def install() -> None:
    """Replace Paddle's functions of discrete choices, before a user's file is imported."""
    for owner in OWNERS:
        replaced.change(owner, "topk", _topk)
        replaced.change(owner, "argmax", _extreme(True))
        replaced.change(owner, "argmin", _extreme(False))
        replaced.change(owner, "argsort", _argsort)
        replaced.change(owner, "sort", _sort)


def _chosen(x: paddle.Tensor, own: paddle.Tensor, axis: int, descending: bool) -> paddle.Tensor | None:
    """Return R64's indices along an axis of ``x``; None if they equal the port's, or are not recorded.

    Args:
        x: scores, of any shape.
        own: indices that the port has chosen along ``axis``.
        axis: axis of the choice.
        descending: whether larger scores come first.
    """
    draws = replaced.draws()
    if draws is None:
        return None
    given = draws.chosen(_last(x, axis), _last(own, axis), descending)
    return None if given is None else paddle.moveaxis(given, -1, axis) if given.ndim > 1 else given


def _last(x: paddle.Tensor, axis: int) -> paddle.Tensor:
    """Return a tensor with one axis moved to the end."""
    return x if axis in (-1, x.ndim - 1) else paddle.moveaxis(x, axis, -1)


def _is_choice(x: Any) -> bool:
    """Return whether ``x`` has scores whose order rounding may change, while draws are recorded or replayed.

    The scores are floating-point numbers, since integers are exact.
    """
    return replaced.draws() is not None and isinstance(x, paddle.Tensor) and x.is_floating_point() and x.ndim > 0


def _arguments(original: Callable, *args: Any, **options: Any) -> dict[str, Any]:
    """Return the arguments of a call of ``original`` by Paddle's parameter names, with defaults.

    The names ``input`` and ``dim`` of torch are accepted for ``x`` and ``axis``.
    """
    if "input" in options:
        options["x"] = options.pop("input")
    if "dim" in options:
        options["axis"] = options.pop("dim")
    given = inspect.signature(original).bind(*args, **options)
    given.apply_defaults()
    return given.arguments


def _topk(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``topk`` that uses R64's indices."""

    def topk(*args: Any, **options: Any) -> Any:
        values, own = original(*args, **options)
        given = _arguments(original, *args, **options)
        x, axis = given["x"], -1 if given["axis"] is None else given["axis"]
        if not _is_choice(x):
            return values, own
        indices = _chosen(x, own, axis, given["largest"])
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
            given = _arguments(original, *args, **options)
            x, axis = given["x"], given["axis"]
            if not _is_choice(x):
                return own
            scores, along = (x.flatten(), 0) if axis is None else (x, axis)
            kept = own.reshape([1]) if axis is None else own if given["keepdim"] else own.unsqueeze(axis)
            indices = _chosen(scores, kept, along, largest)
            return own if indices is None else indices.reshape(own.shape).astype(own.dtype)

        return extreme

    return make


def _argsort(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``argsort`` that uses R64's indices."""

    def argsort(*args: Any, **options: Any) -> paddle.Tensor:
        own = original(*args, **options)
        given = _arguments(original, *args, **options)
        if not _is_choice(given["x"]):
            return own
        indices = _chosen(given["x"], own, given["axis"], given["descending"])
        return own if indices is None else indices

    return argsort


def _sort(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``sort`` that sorts in R64's order."""

    def sort(*args: Any, **options: Any) -> paddle.Tensor:
        own = original(*args, **options)
        given = _arguments(original, *args, **options)
        x, axis, descending = given["x"], given["axis"], given["descending"]
        if not _is_choice(x):
            return own
        order = getattr(paddle.argsort, "of_paddle", paddle.argsort)(x.detach(), axis, descending)
        indices = _chosen(x, order, axis, descending)
        return own if indices is None else paddle.take_along_axis(x, indices, axis)

    return sort
