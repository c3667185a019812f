"""Points inside the models' code at which somebody may look on, and step in: one for each operation of attention.

A gate that follows the port operation by operation needs the tensors between them, where no layer of its own ends. A
point costs a comparison with None where nobody looks on, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import paddle

#: Given an operation's name and its result, gives what the model goes on with.
Observer = Callable[[str, paddle.Tensor], paddle.Tensor]

_observer: Observer | None = None


def at(operation: str, result: paddle.Tensor) -> paddle.Tensor:
    """The result of an operation, as it is unless an :func:`observed` run puts something else in its place."""
    return result if _observer is None else _observer(operation, result)


def is_observed() -> bool:
    """Whether somebody looks on: then operations that are otherwise one loop are taken apart."""
    return _observer is not None


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Inside the ``with`` block ``observer`` is called at every point."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before
