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
_takes_apart = False


def at(operation: str, result: paddle.Tensor) -> paddle.Tensor:
    """The result of an operation, as it is unless an :func:`observed` run puts something else in its place."""
    return result if _observer is None else _observer(operation, result)


def takes_apart() -> bool:
    """Whether operations that have points inside are computed one after another where they are otherwise one loop."""
    return _takes_apart


@contextmanager
def observed(observer: Observer, apart: bool = False) -> Iterator[None]:
    """Inside the ``with`` block ``observer`` is called at every point; ``apart``, also at those inside of compiled
    loops, in whose place others compute."""
    global _observer, _takes_apart
    before = _observer, _takes_apart
    _observer, _takes_apart = observer, apart
    try:
        yield
    finally:
        _observer, _takes_apart = before
