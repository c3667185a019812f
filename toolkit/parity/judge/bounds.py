"""By how much a tensor of the port may differ from the reference: verdicts 2 and 3 of PARITY.md on one tensor.

R64 is the reference in float64, the truth; err(X) is the RMS of X - R64. The yardstick is err(R32), the largest over
several float32 runs of the reference whose weights were moved by one unit in the last place: how much this network,
with these weights and inputs, amplifies rounding. No tolerance is absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Units of rounding: half the distance from 1 to the next number.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}

#: Verdict 2: err(P64) may be this many times what err(R32) shrinks to in float64 (by 2^-29), or what R64 itself moves
#: by when its weights move by one unit of float64, if that is more: an error that has grown as large as the tensor in
#: float32 has stopped growing there, not in float64. Right ports were measured at 0.5 to 2.4 times; a wrong epsilon
#: stands at 10^6 and more.
SEMANTIC_FACTOR, SEMANTIC_FACTOR_MAX = 8.0, 32.0
#: Verdict 3: err(P32) against err(R32). On the maximum, an extreme value and noisier, more is allowed.
ROUNDING_FACTOR, ROUNDING_FACTOR_MAX = 3.0, 10.0
#: The floor under both bounds, in units of rounding of the tensor's own scale: a short sum's worth. It matters where
#: the yardstick is 0 by luck, as for a scalar that the reference's float32 happens to hit.
FLOOR_UNITS = 16.0
#: Where err(R32) exceeds this fraction of the tensor, its float32 value carries no information; float64 alone decides.
UNINFORMATIVE = 0.1


@dataclass(frozen=True)
class Comparison:
    """One tensor in one dtype.

    Attributes:
        name: ``output:MODULE#CALL``, ``stream:LAYER#WHICH``, ``gradient:PARAMETER``, ``logits`` or ``loss``.
        error, bound: RMS of the difference from R64, and the most it may be.
        error_max, bound_max: the same of the largest difference.
        relative: error over the RMS of R64.
        informative: False where the reference's own float32 is noise.
    """

    name: str
    dtype: str
    error: float
    bound: float
    error_max: float
    bound_max: float
    relative: float
    informative: bool

    @property
    def passed(self) -> bool:
        return not self.informative or (self.error <= self.bound and self.error_max <= self.bound_max)

    @property
    def margin(self) -> float:
        """The error in units of its bound: above 1 it fails."""
        return max(_ratio(self.error, self.bound), _ratio(self.error_max, self.bound_max))


def compare(name: str, theirs: dict, ours: dict, dtype: str) -> Comparison:
    """One tensor's errors and bounds.

    Args:
        theirs: ``rms``, ``max`` of R64; by dtype, ``noise``, ``noise_max`` of each run of the reference; what is
            measured in ``dtype`` (:func:`is_measured`).
        ours: ``rms``, ``max`` of the port's difference from R64.
    """
    noise, noise_max = max(theirs["noise"][dtype]), max(theirs["noise_max"][dtype])
    if dtype == "float64":
        factor, factor_max, shrink = SEMANTIC_FACTOR, SEMANTIC_FACTOR_MAX, UNIT["float64"] / UNIT["float32"]
        if is_measured(theirs, "float32"):
            noise = max(noise, shrink * max(theirs["noise"]["float32"]))
            noise_max = max(noise_max, shrink * max(theirs["noise_max"]["float32"]))
    else:
        factor, factor_max = ROUNDING_FACTOR, ROUNDING_FACTOR_MAX
    if name.startswith("loss#"):  # one number is its own extreme value
        factor = factor_max
    floor = FLOOR_UNITS * UNIT[dtype]
    return Comparison(
        name=name,
        dtype=dtype,
        error=ours["rms"],
        bound=factor * noise + floor * theirs["rms"],
        error_max=ours["max"],
        bound_max=factor_max * noise_max + floor * theirs["max"],
        relative=_ratio(ours["rms"], theirs["rms"]),
        informative=dtype == "float64" or noise <= UNINFORMATIVE * theirs["rms"],
    )


def is_measured(theirs: Mapping[str, Any], dtype: str) -> bool:
    """Whether a tensor of R64's, and of all runs that measure its noise in ``dtype``, is finite."""
    return theirs["rms"] is not None and None not in theirs["noise"][dtype]


def float32_noise(theirs: dict) -> str:
    """The reference's float32 error relative to the tensor, in words."""
    if not is_measured(theirs, "float32"):
        return "not finite"
    return f"off by {_ratio(max(theirs['noise']['float32']), theirs['rms']):.1e}"


def _ratio(error: float, scale: float) -> float:
    return error / scale if scale else (0.0 if error == 0 else float("inf"))
