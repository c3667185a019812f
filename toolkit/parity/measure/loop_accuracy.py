"""Accuracy of each compiled loop of the port in isolation: its error against float64, on random input.

A whole run in float32 may have three times the reference's error, which hides a loop that loses a few digits. In
isolation, a loop is measured directly. Its random input has a known condition: for each element, a *unit* is one
float32 rounding of the terms of its sum. Errors are measured in these units. Only NumPy is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toolkit.parity.measure import decoder_truths, loop_truths
from toolkit.parity.measure.loop_truths import ROUNDING, LoopCheck, Truth

#: Name of a function of :mod:`models.operations.compiled` -> check of its accuracy. Functions that draw random masks
#: have no check; verdict 7 (randomness) judges them.
CHECKS: dict[str, LoopCheck] = {**loop_truths.CHECKS, **decoder_truths.CHECKS}


@dataclass
class LoopCall:
    """A call of a function of :mod:`models.operations.compiled`.

    Attributes:
        function: name of the function.
        given: arguments of the call: the shape of an array, a list of such arguments, or a plain value.
    """

    function: str
    given: list[Any] = field(default_factory=list)


@dataclass
class LoopError:
    """Errors of a compiled loop in units of rounding.

    The errors are None if an output has NaN, or should be exact and is not.

    Attributes:
        function: name of the function of :mod:`models.operations.compiled`.
        loop: name of the loop that the function runs.
        given: arguments of the call, as in :class:`LoopCall`.
        rms, largest: RMS and largest error of the worst output.
        where: source line of the loop; empty until the port's process adds it.
    """

    function: str
    loop: str
    given: list[Any]
    rms: float | None
    largest: float | None
    where: str = ""


def draw_arguments(call: LoopCall) -> tuple:
    """Return random arguments of a call, with NumPy arrays instead of shapes; they are the same each time."""
    return CHECKS[call.function].draw(np.random.default_rng(0), *call.given)


def measure_error(
    call: LoopCall, loop_outputs: Sequence[np.ndarray], truths: Sequence[Truth] | None = None
) -> LoopError:
    """Return the errors of the outputs of a call in units of rounding.

    Args:
        call: the call with the shapes of its arguments.
        loop_outputs: outputs of the loop for the arguments of :func:`draw_arguments`.
        truths: true outputs with their units; None to compute them.
    """
    check = CHECKS[call.function]
    truths = check.exact(*draw_arguments(call)) if truths is None else truths
    errors = [_measure_in_units(output, *truth) for output, truth in zip(loop_outputs, truths, strict=True)]
    rms, largest = (max(values) for values in zip(*errors, strict=True))
    if not np.isfinite(rms):
        return LoopError(call.function, check.loop, call.given, None, None)
    return LoopError(call.function, check.loop, call.given, rms, largest)


def _measure_in_units(loop_output: np.ndarray, true_value: np.ndarray, unit: np.ndarray) -> tuple[float, float]:
    """Return the RMS and the largest error of an output in units of rounding.

    The RMS is taken over the elements that may have an error. Both are infinite if an element is NaN, or if it
    should be exact and is not.

    Args:
        loop_output: output of the loop.
        true_value: true output, float64, of the same shape.
        unit: unit of each element, of the same shape; 0 for an element that should be exact.
    """
    if loop_output.shape != true_value.shape:
        return np.inf, np.inf
    distance = np.abs(loop_output.astype(np.float64) - true_value)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(distance == 0, 0.0, distance / (ROUNDING * unit))
    largest = float(units.max(initial=0.0))
    if not np.isfinite(largest):
        return np.inf, np.inf
    return float(np.sqrt(np.square(units).sum() / max(np.count_nonzero(unit), 1))), largest
