"""Accuracy of each compiled loop of the port by itself: on random input of a run's own shapes, against float64.

A free run in float32 may be three times as far off as the reference's, which hides a loop that loses a few digits. By
itself a loop has no such room. Its input is drawn, so that its condition is known: for each element a *unit* is one
float32 rounding of what is added up there, and errors are measured in these.

All is NumPy: the judging side draws the same input again from the shapes, and is handed only the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolkit.parity.measure import decoder_truths, loop_truths
from toolkit.parity.measure.loop_truths import MOST_NUMBERS, ROUNDING, LoopCheck, Truth

#: Rows of CTRL's vocabulary test sums, and an exp, of which few classes tell nothing.
WIDE = {"cross_entropy": [[2, 246_534], [2]], "cross_entropy_backward": [[2], [2, 246_534], [2], [2, 2]]}

#: By function of :mod:`models.operations.compiled`: all but the random masks, which verdict 7 judges.
CHECKS: dict[str, LoopCheck] = {**loop_truths.CHECKS, **decoder_truths.CHECKS}


@dataclass
class LoopCall:
    """A call of a function of :mod:`models.operations.compiled`.

    Attributes:
        given: its arguments: an array's shape, a list for arrays and their values, else the value.
        where: the source line of its loop.
    """

    function: str
    given: list[Any] = field(default_factory=list)
    where: str = ""


@dataclass
class LoopError:
    """Errors of a loop, in units of rounding; None if not a number, or if it has to be exact and is not.

    Attributes:
        function: of :mod:`models.operations.compiled`; ``loop``: that it runs.
        given, where: as of :class:`LoopCall`.
        rms, largest: of the worst output.
    """

    function: str
    loop: str
    given: list[Any]
    rms: float | None
    largest: float | None
    where: str = ""


def select_calls(recorded: Sequence[LoopCall]) -> Iterator[LoopCall]:
    """Calls to try: each once, on :data:`MOST_NUMBERS` at most; and rows as wide as any."""
    for call in recorded:
        yield _limited(call)
    for function, given in WIDE.items():
        if first := [call for call in recorded if call.function == function][:1]:
            yield replace(first[0], given=given)


def _limited(call: LoopCall) -> LoopCall:
    given, examples = list(call.given), CHECKS[call.function].examples
    numbers = max(math.prod(shape) for shape in given if is_shape(shape))
    many = given[examples[0]][0]
    few = max(1, many * MOST_NUMBERS // max(numbers, 1))
    if few >= many:
        return call
    for index in examples:
        given[index] = _cut(given[index], many, few)
    return replace(call, given=given)


def is_shape(given: Any) -> bool:
    """Whether an argument of a call is the shape of an array."""
    return isinstance(given, list) and bool(given) and all(isinstance(size, int) for size in given)


def _cut(shapes: Any, many: int, few: int) -> Any:
    """A shape, or a list with shapes in it, with few of many examples."""
    if is_shape(shapes):
        return [few, *shapes[1:]] if shapes[0] == many else shapes
    return [_cut(one, many, few) for one in shapes] if isinstance(shapes, list) else shapes


def draw_arguments(call: LoopCall) -> tuple:
    """Arguments of a call, with NumPy arrays; the same ones each time."""
    return CHECKS[call.function].draw(np.random.default_rng(0), *call.given)


def measure_error(call: LoopCall, outputs: Sequence[np.ndarray], truths: Sequence[Truth] | None = None) -> LoopError:
    """How far off the outputs of a call are.

    Args:
        outputs: of the loop, given :func:`drawn`.
        truths: what they should be, if known already.
    """
    check = CHECKS[call.function]
    truths = check.exact(*draw_arguments(call)) if truths is None else truths
    found = [_in_units(output, *truth) for output, truth in zip(outputs, truths, strict=True)]
    rms, largest = (max(column) for column in zip(*found, strict=True))
    if not np.isfinite(rms):
        return LoopError(call.function, check.loop, call.given, None, None, call.where)
    return LoopError(call.function, check.loop, call.given, rms, largest, call.where)


def _in_units(output: np.ndarray, truth: np.ndarray, unit: np.ndarray) -> tuple[float, float]:
    """RMS and largest error where there may be one; infinite without a number, or where none may be."""
    if output.shape != truth.shape:
        return np.inf, np.inf
    off = np.abs(output.astype(np.float64) - truth)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(off == 0, 0.0, off / (ROUNDING * unit))
    largest = float(units.max(initial=0.0))
    if not np.isfinite(largest):
        return np.inf, np.inf
    return float(np.sqrt(np.square(units).sum() / max(np.count_nonzero(unit), 1))), largest
