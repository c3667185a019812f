"""Outputs of the compiled loops for random input of a run's shapes (:mod:`toolkit.parity.measure.loop_accuracy`)."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle

from models.operations import compiled
from toolkit.parity.job.handover import Sender
from toolkit.parity.measure import loop_accuracy
from toolkit.parity.measure.loop_accuracy import CHECKS, LoopCall, draw_arguments


@contextlib.contextmanager
def record_calls() -> Iterator[list[LoopCall]]:
    """Inside the ``with`` block, record each different call of a compiled loop once."""
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
    call = LoopCall(
        name, [_describe_argument(value) for value in (*arguments, *keywords.values())], _line(CHECKS[name].loop)
    )
    calls_by_key.setdefault(json.dumps([name, call.given]), call)
    return plain(*arguments, **keywords)


@functools.cache
def _line(loop: str) -> str:
    """Return where a loop is defined, without importing its module, which imports Numba."""
    from models.operations import loop_code

    file = loop_code.find_loop_file(loop)
    before, _, _ = file.read_text(encoding="utf-8").partition(f"\ndef {loop}(")
    return f"models/operations/{file.name}:{before.count(chr(10)) + 2}"


def _describe_argument(value: Any) -> Any:
    if isinstance(value, paddle.Tensor):
        return list(value.shape)
    return [_describe_argument(one) for one in value] if isinstance(value, (list, tuple)) else value


def send_outputs(calls: Sequence[LoopCall], sender: Sender) -> None:
    """Send the loops' outputs of these calls for random input."""
    for call in loop_accuracy.select_calls(calls):
        sender.send_json("loop", call)
        for number, output in enumerate(outputs(call)):
            sender.send_array("loop output", str(number), output)


def outputs(call: LoopCall, inputs: tuple | None = None) -> list[np.ndarray]:
    """Return the outputs of a call for its drawn input."""
    results = getattr(compiled, call.function)(*map(_as_tensors, draw_arguments(call) if inputs is None else inputs))
    return [one.numpy() for one in (results if isinstance(results, tuple) else (results,)) if one is not None]


def _as_tensors(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_tensors(one) for one in value]
    return paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
