"""Points inside the models' code that can observe or replace a tensor: one for each operation of attention.

A gate that follows the port operation by operation needs the tensors between them, where no layer ends. Without an
observer, a point costs a comparison with None and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import paddle

from models.operations import compiled
from models.operations.precision import is_lowered

#: Takes an operation's name and result; returns the tensor that the model uses.
Observer = Callable[[str, paddle.Tensor], paddle.Tensor]

_observer: Observer | None = None
_takes_apart = False


def at(operation: str, result: paddle.Tensor) -> paddle.Tensor:
    """Return an operation's result, or what the observer of an :func:`observed` run puts in its place."""
    return result if _observer is None else _observer(operation, result)


def takes_apart() -> bool:
    """Whether compiled loops with points inside are to be computed as separate operations."""
    return _takes_apart


def is_one_operation(*tensors: paddle.Tensor, loop: str) -> bool:
    """Whether a compiled loop that is several of the reference's operations of attention is to compute these. It is
    composed of them in mixed precision, and where someone looks at the points: no single one says how far off the loop
    may be."""
    return compiled.suits(*tensors, loop=loop) and _observer is None and not is_lowered("attention")


@contextmanager
def observed(observer: Observer, apart: bool = False) -> Iterator[None]:
    """Call ``observer`` at every point inside the ``with`` block; with ``apart``, also at those inside compiled loops,
    which are then computed as separate operations."""
    global _observer, _takes_apart
    before = _observer, _takes_apart
    _observer, _takes_apart = observer, apart
    try:
        yield
    finally:
        _observer, _takes_apart = before
