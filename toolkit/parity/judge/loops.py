"""Faults of the compiled loops by themselves (:mod:`toolkit.parity.measure.loop_accuracy`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from toolkit.parity.measure.loop_accuracy import LoopError

#: Bounds on the RMS and the maximum of a loop's errors, in units of rounding. The right loops reached at most 2.5 and
#: 8.0 in 6,600 calls (rows of 8 to 4,097 numbers, 2 to 2,560 of them, three draws of each). On the trials' shapes exp
#: without its last two terms had 4.7 to 12 and 15 to 56, a vocabulary summed in float32 77 and 109, a one-pass variance
#: at least 83 and 1,250.
RMS, LARGEST = 4.0, 16.0


def faults(errors: Sequence[LoopError]) -> Iterator[tuple[str, str]]:
    """Yield each loop beyond the bounds once, with its worst error."""
    wrong = [one for one in errors if _margin(one) > 1]
    for loop in dict.fromkeys(one.loop for one in wrong):
        worst = max((one for one in wrong if one.loop == loop), key=_margin)
        shapes = ", ".join(_text(value) for value in worst.given if isinstance(value, list) and value)
        if worst.rms is None:
            yield loop, f"on {shapes}: gives no number, or another one where it has to be exact"
        else:
            text = f"on {shapes}: off by {worst.rms:.3g} units of rounding (RMS), {worst.largest:.3g} at most"
            yield loop, f"{text}; {RMS:.3g} and {LARGEST:.3g} are allowed"


def _margin(one: LoopError) -> float:
    """Error in units of its bound."""
    return math.inf if one.rms is None or one.largest is None else max(one.rms / RMS, one.largest / LARGEST)


def _text(shape: list) -> str:
    return f"{len(shape)} masks" if isinstance(shape[0], list) else " x ".join(map(str, shape))
