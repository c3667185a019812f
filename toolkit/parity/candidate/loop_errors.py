"""Errors of the compiled loops on this processor, on the random input of :mod:`toolkit.parity.measure.loop_accuracy`.

They depend only on the machine code and the installed packages. So they are measured once and cached.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import paddle

from models.operations import compiled
from toolkit.machine import runtime
from toolkit.parity.bundle import cache
from toolkit.parity.measure.loop_accuracy import CHECKS, LoopCall, LoopError, draw_arguments, measure_error


def cached_errors() -> list[LoopError]:
    """Return the errors of all compiled loops, from the cache if the same loops were measured on this processor.

    Loops that this process has run come first, so that a fault of a shared function is named by a loop of the model.
    The list is empty if the port does not run compiled loops.
    """
    if not _are_used():
        return []
    from models.operations import loop_code

    loops_of_model = set(loop_code.loaded_loops)  # a measurement loads the others, too
    return sorted(_cached_errors(), key=lambda error: error.loop not in loops_of_model)


def _cached_errors() -> list[LoopError]:
    """Return the errors of all compiled loops in a fixed order, from the cache if they were measured before."""
    from models.operations import loop_code

    environment = {**cache.describe_environment({}), "versions": runtime.installed_versions()}
    key = hashlib.sha256(json.dumps([loop_code.code_key(), environment], sort_keys=True).encode()).hexdigest()
    if (entry := cache.load(key, list[LoopError])) is not None:
        return entry[0]
    errors = measure_errors()
    cache.store(key, errors, {})
    return errors


def measure_errors() -> list[LoopError]:
    """Measure the errors of all compiled loops; the list is empty if the port does not run compiled loops."""
    if not _are_used():
        return []
    calls = [LoopCall(name, list(arguments)) for name, check in CHECKS.items() for arguments in check.calls]
    return [
        replace(measure_error(call, compute_outputs(call)), where=_find_line(CHECKS[call.function].loop))
        for call in calls
    ]


def _are_used() -> bool:
    """Return whether the port runs compiled loops, which work only on a CPU."""
    return compiled.is_chosen() and paddle.get_device() == "cpu"


@functools.cache
def _find_line(loop: str) -> str:
    """Return the source line, ``file:line``, that defines a loop, without importing its module, which imports Numba."""
    from models.operations import loop_code

    file = loop_code.find_loop_file(loop)
    before, _, _ = file.read_text(encoding="utf-8").partition(f"\ndef {loop}(")
    return f"models/operations/{file.name}:{before.count(chr(10)) + 2}"


def compute_outputs(call: LoopCall, inputs: tuple | None = None) -> list[np.ndarray]:
    """Return the outputs of a call of a compiled loop for random input.

    Args:
        call: the call, with shapes instead of arrays.
        inputs: arguments with arrays; None to draw them (:func:`.loop_accuracy.draw_arguments`).
    """
    results = getattr(compiled, call.function)(*map(_as_tensors, draw_arguments(call) if inputs is None else inputs))
    return [output.numpy() for output in (results if isinstance(results, tuple) else (results,)) if output is not None]


def _as_tensors(value: Any) -> Any:
    """Return an argument with each NumPy array converted to a Paddle tensor, also within lists."""
    if isinstance(value, (list, tuple)):
        return [_as_tensors(element) for element in value]
    return paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
