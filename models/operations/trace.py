"""Trace points in the code of the models, where an observer can read or replace a tensor.

There is one for each operation of attention: a gate that follows the port operation by operation needs tensors that are
not the output of a layer. Without an observer, a trace point only compares with None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import paddle

from models.operations import compiled
from models.operations.precision import is_cast_to_bfloat16

#: Takes an operation's name and result; returns the tensor that the model uses.
Observer = Callable[[str, paddle.Tensor], paddle.Tensor]

_observer: Observer | None = None
_splits_loops = False


def at(operation: str, result: paddle.Tensor) -> paddle.Tensor:
    """Return the result of an operation, or the tensor that the observer returns for it."""
    return result if _observer is None else _observer(operation, result)


def splits_loops() -> bool:
    """Return whether compiled loops with trace points inside are computed as separate operations."""
    return _splits_loops


def is_one_operation(*tensors: paddle.Tensor, loop: str) -> bool:
    """Return whether a compiled loop computes several operations of attention at once on these tensors.

    They are computed separately in mixed precision, and if there is an observer: the accuracy of a single operation
    does not tell how accurate the loop has to be.

    Args:
        tensors: inputs of the loop.
        loop: key of :data:`models.operations.compiled.LOOPS`.
    """
    return compiled.supports_compiled(*tensors, loop=loop) and not (_observer or is_cast_to_bfloat16("attention"))


@contextmanager
def observe_trace(observer: Observer, splits_loops: bool = False) -> Iterator[None]:
    """Call ``observer`` at every trace point inside the ``with`` block.

    Args:
        observer: receives each operation's name and result.
        splits_loops: whether it is also called at the trace points inside compiled loops, which are then computed as
            separate operations.
    """
    global _observer, _splits_loops
    previous = _observer, _splits_loops
    _observer, _splits_loops = observer, splits_loops
    try:
        yield
    finally:
        _observer, _splits_loops = previous
