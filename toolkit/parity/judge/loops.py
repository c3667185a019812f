"""Judgment of each compiled loop of the port in isolation (:mod:`toolkit.parity.measure.loop_accuracy`).

A compiled loop is a function of :mod:`models.operations.compiled` that Numba compiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from toolkit.parity.measure.loop_accuracy import LoopError

#: Largest allowed RMS and maximum of a loop's errors in units of rounding. The correct loops reached at most 2.5 and
#: 8.0 in 6,600 calls (2 to 2,560 rows of 8 to 4,097 numbers, three draws each). With the shapes of the trials, exp
#: without its last two terms had 4.7 to 12 and 15 to 56, a vocabulary that is summed in float32 had 77 and 109, and a
#: one-pass variance had at least 83 and 1,250.
MAX_RMS, MAX_ERROR = 4.0, 16.0


def faults(errors: Sequence[LoopError]) -> Iterator[tuple[str, str]]:
    """Yield the name of each loop with an error beyond the bounds, and a message with its largest error.

    Args:
        errors: errors of the loops' calls; a loop may have several.
    """
    wrong = [one for one in errors if _margin(one) > 1]
    for loop in dict.fromkeys(one.loop for one in wrong):
        worst = max((one for one in wrong if one.loop == loop), key=_margin)
        shapes = ", ".join(_describe_shape(value) for value in worst.given if isinstance(value, list) and value)
        if worst.rms is None:
            yield loop, f"on {shapes}: gives no number, or another one where it has to be exact"
        else:
            text = f"on {shapes}: off by {worst.rms:.3g} units of rounding (RMS), {worst.largest:.3g} at most"
            yield loop, f"{text}; {MAX_RMS:.3g} and {MAX_ERROR:.3g} are allowed"


def _margin(loop_error: LoopError) -> float:
    """Return the error of a loop divided by its bound; infinite if the error is not a number."""
    return (
        math.inf
        if loop_error.rms is None or loop_error.largest is None
        else max(loop_error.rms / MAX_RMS, loop_error.largest / MAX_ERROR)
    )


def _describe_shape(shape: list) -> str:
    """Describe the shape of an argument, such as ``2 x 64``, or a list of shapes, such as ``3 masks``."""
    return f"{len(shape)} masks" if isinstance(shape[0], list) else " x ".join(map(str, shape))
