"""Accuracy of each compiled loop of the port in isolation: its error against float64, on random input.

A whole run in float32 may have three times the reference's error, which hides a loop that loses a few digits. In
isolation, a loop is measured directly. Its input has the shapes of a run and a known condition: for each element, a
*unit* is one float32 rounding of the terms of its sum. Errors are measured in these units.

Only NumPy is used: the comparator draws the same input again from the shapes, and receives only the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolkit.parity.measure import decoder_truths, loop_truths
from toolkit.parity.measure.loop_truths import MAX_NUMBERS, ROUNDING, LoopCheck, Truth

#: Name of a function -> shapes of arguments with rows as wide as CTRL's vocabulary. Only long rows show errors of sums
#: and of exp.
WIDE_ROWS = {"cross_entropy": [[2, 246_534], [2]], "cross_entropy_backward": [[2], [2, 246_534], [2], [2, 2]]}

#: Name of a function of :mod:`models.operations.compiled` -> check of its accuracy. Functions that draw random masks
#: have no check; verdict 7 (randomness) judges them.
CHECKS: dict[str, LoopCheck] = {**loop_truths.CHECKS, **decoder_truths.CHECKS}


@dataclass
class LoopCall:
    """A call of a function of :mod:`models.operations.compiled`.

    Attributes:
        function: name of the function.
        given: arguments of the call: the shape of an array, a list of such arguments, or a plain value.
        where: source line of the loop.
    """

    function: str
    given: list[Any] = field(default_factory=list)
    where: str = ""


@dataclass
class LoopError:
    """Errors of a compiled loop in units of rounding.

    The errors are None if an output has NaN, or should be exact and is not.

    Attributes:
        function: name of the function of :mod:`models.operations.compiled`.
        loop: name of the loop that the function runs.
        given, where: arguments and source line, as in :class:`LoopCall`.
        rms, largest: RMS and largest error of the worst output.
    """

    function: str
    loop: str
    given: list[Any]
    rms: float | None
    largest: float | None
    where: str = ""


def select_calls(recorded_calls: Sequence[LoopCall]) -> Iterator[LoopCall]:
    """Yield the calls to check: recorded calls with at most :data:`MAX_NUMBERS` elements, and calls with wide rows."""
    for call in recorded_calls:
        yield _limit_examples(call)
    for function, wide_arguments in WIDE_ROWS.items():
        if first := [call for call in recorded_calls if call.function == function][:1]:
            yield replace(first[0], given=wide_arguments)


def _limit_examples(call: LoopCall) -> LoopCall:
    """Return the call with as many examples as :data:`MAX_NUMBERS` elements of its largest array allow."""
    arguments, examples = list(call.given), CHECKS[call.function].examples
    max_numbers = max(math.prod(shape) for shape in arguments if is_shape(shape))
    num_examples = arguments[examples[0]][0]
    limit = max(1, num_examples * MAX_NUMBERS // max(max_numbers, 1))
    if limit >= num_examples:
        return call
    for index in examples:
        arguments[index] = _cut_examples(arguments[index], num_examples, limit)
    return replace(call, given=arguments)


def is_shape(argument: Any) -> bool:
    """Return whether an argument of a recorded call is the shape of an array: a list of whole numbers."""
    return isinstance(argument, list) and bool(argument) and all(isinstance(size, int) for size in argument)


def _cut_examples(argument: Any, num_examples: int, limit: int) -> Any:
    """Return an argument of a call with fewer examples in its shapes.

    Args:
        argument: argument of a call; shapes whose first axis is ``num_examples`` are changed.
        num_examples: number of examples in the argument.
        limit: number of examples in the result.
    """
    if is_shape(argument):
        return [limit, *argument[1:]] if argument[0] == num_examples else argument
    return [_cut_examples(part, num_examples, limit) for part in argument] if isinstance(argument, list) else argument


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
        return LoopError(call.function, check.loop, call.given, None, None, call.where)
    return LoopError(call.function, check.loop, call.given, rms, largest, call.where)


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
