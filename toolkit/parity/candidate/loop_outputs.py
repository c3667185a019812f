"""Outputs of the compiled loops for random input of a run's shapes (:mod:`toolkit.parity.measure.loop_accuracy`).

The comparator draws the same input, and compares the outputs with float64.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle

from models.operations import compiled
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.measure import loop_accuracy
from toolkit.parity.measure.loop_accuracy import CHECKS, LoopCall, draw_arguments


@contextlib.contextmanager
def record_calls() -> Iterator[list[LoopCall]]:
    """Inside the ``with`` block, record the calls of the compiled loops, each with different arguments once.

    The list that the block gets is filled when the block ends.
    """
    calls_by_key: dict[str, LoopCall] = {}
    with contextlib.ExitStack() as undo:
        calls: list[LoopCall] = []
        for name in CHECKS:
            plain = getattr(compiled, name)
            undo.callback(setattr, compiled, name, plain)
            setattr(compiled, name, functools.partial(_record_call, calls_by_key, name, plain))
        yield calls
        calls += calls_by_key.values()


def _record_call(
    calls_by_key: dict[str, LoopCall], name: str, plain: Callable, *arguments: Any, **keywords: Any
) -> Any:
    """Add a call of a compiled loop to ``calls_by_key``, and return the result of the call.

    Args:
        calls_by_key: recorded calls, by name and arguments as JSON.
        name: name of the function of :mod:`models.operations.compiled`.
        plain: the function itself.
        arguments: positional arguments of the call.
        keywords: keyword arguments of the call.
    """
    call = LoopCall(
        name, [_describe_argument(value) for value in (*arguments, *keywords.values())], _line(CHECKS[name].loop)
    )
    calls_by_key.setdefault(json.dumps([name, call.given]), call)
    return plain(*arguments, **keywords)


@functools.cache
def _line(loop: str) -> str:
    """Return the source line, ``file:line``, that defines a loop, without importing its module, which imports Numba."""
    from models.operations import loop_code

    file = loop_code.find_loop_file(loop)
    before, _, _ = file.read_text(encoding="utf-8").partition(f"\ndef {loop}(")
    return f"models/operations/{file.name}:{before.count(chr(10)) + 2}"


def _describe_argument(value: Any) -> Any:
    """Return the shape of a tensor, a list of such descriptions for a list, or any other argument unchanged."""
    if isinstance(value, paddle.Tensor):
        return list(value.shape)
    return [_describe_argument(one) for one in value] if isinstance(value, (list, tuple)) else value


def send_outputs(calls: Sequence[LoopCall], sender: Sender) -> None:
    """Send the outputs of the recorded calls for random input of the same shapes."""
    for call in loop_accuracy.select_calls(calls):
        sender.send_json("loop", call)
        for number, output in enumerate(outputs(call)):
            sender.send_array("loop output", str(number), output)


def outputs(call: LoopCall, inputs: tuple | None = None) -> list[np.ndarray]:
    """Return the outputs of a call of a compiled loop for random input.

    Args:
        call: the call, with shapes instead of arrays.
        inputs: arguments with arrays; None to draw them (:func:`.loop_accuracy.draw_arguments`).
    """
    results = getattr(compiled, call.function)(*map(_as_tensors, draw_arguments(call) if inputs is None else inputs))
    return [one.numpy() for one in (results if isinstance(results, tuple) else (results,)) if one is not None]


def _as_tensors(value: Any) -> Any:
    """Return an argument with each NumPy array converted to a Paddle tensor, also within lists."""
    if isinstance(value, (list, tuple)):
        return [_as_tensors(one) for one in value]
    return paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
