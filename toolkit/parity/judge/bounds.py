"""How much a tensor of the port may differ from the reference: verdicts 2 and 3 on one tensor.

R64 is the reference in float64, the truth; err(X) is the RMS of X - R64. The noise baseline is err(R32), the largest
over several float32 runs of the reference whose weights were moved by one unit in the last place: how much this
network, with these weights and inputs, amplifies rounding. No tolerance is absolute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName

#: Units of rounding: half the distance from 1 to the next number. bfloat16 has float32's, since all but the matrix
#: products is in float32; only the reference's own runs tell how much the products round.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-24}

#: Verdict 2: err(P64) may be this many times err(R32) * 2^-29, or how far R64 itself moves when its weights move by one
#: unit of float64, if that is more: in float32 an error stops growing once it is as large as the tensor, in float64 it
#: goes on. Right ports were measured at 0.5 to 2.4 times; a wrong epsilon stands at 10^6 and more.
SEMANTIC_FACTOR, SEMANTIC_FACTOR_MAX = 8.0, 32.0
#: Verdict 3: err(P32) against err(R32), and the same in bfloat16. The maximum is an extreme value and noisier, so its
#: factor is larger.
ROUNDING_FACTOR, ROUNDING_FACTOR_MAX = 3.0, 10.0
#: Floor under both bounds, in units of rounding at the tensor's scale: about a short sum's error. It matters where
#: the noise baseline is 0 by luck, as for a scalar that the reference's float32 happens to hit.
FLOOR_UNITS = 16.0
#: Where err(R32) exceeds this fraction of the tensor, its float32 value carries no information; float64 alone decides.
#: Where err(R64) exceeds it, nothing decides.
UNINFORMATIVE = 0.1
#: If err(R64) exceeds err(R32) * u64/u32 by more than this factor, R64 itself has lost its digits. Gradients that are 0
#: but for rounding stood at 3 to 18, lost ones from 7e7 on.
BEYOND_FLOAT32 = 1e4


def float32_bounds(noise: tuple[float, float], scale: tuple[float, float]) -> tuple[float, float]:
    """Largest allowed difference between two float32 values of one tensor: verdict 3, RMS and maximum.

    Args:
        noise: RMS and maximum of its rounding error.
        scale: RMS and maximum of the value itself.
    """
    return (
        _bound(ROUNDING_FACTOR, noise[0], scale[0], "float32"),
        _bound(ROUNDING_FACTOR_MAX, noise[1], scale[1], "float32"),
    )


def _bound(factor: float, noise: float, size: float, dtype: str) -> float:
    return factor * noise + FLOOR_UNITS * UNIT[dtype] * size


@dataclass(frozen=True)
class Comparison:
    """One tensor in one dtype.

    Attributes:
        name: ``output:MODULE#CALL``, ``stream:LAYER#WHICH``, ``gradient:PARAMETER``, ``logits`` or ``loss``.
        error, bound: RMS of the difference from R64, and its upper bound.
        error_max, bound_max: the same of the largest difference.
        relative: error over the RMS of R64.
        informative: False where the reference's own value in this dtype is noise.
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
        """Error in units of its bound: above 1 it fails."""
        return max(ratio(self.error, self.bound), ratio(self.error_max, self.bound_max))


def compare(name: str, theirs: TensorRecord, ours: TensorStats, dtype: str) -> Comparison:
    """Return one tensor's errors and bounds.

    Args:
        theirs: R64's record, measured in ``dtype`` (:func:`is_measured`).
        ours: the port's difference from R64, which has a size.
    """
    noise, noise_max = _largest(theirs.noise[dtype]), _largest(theirs.noise_max[dtype])
    if dtype == "float64":
        factor, factor_max, shrink = SEMANTIC_FACTOR, SEMANTIC_FACTOR_MAX, UNIT["float64"] / UNIT["float32"]
        if is_measured(theirs, "float32"):
            noise = max(noise, shrink * _largest(theirs.noise["float32"]))
            noise_max = max(noise_max, shrink * _largest(theirs.noise_max["float32"]))
    else:
        factor, factor_max = ROUNDING_FACTOR, ROUNDING_FACTOR_MAX
    parsed = TensorName.parse(name)
    if parsed.kind == "loss" and parsed.is_of_training:  # one number is its own extreme value
        factor = factor_max
    size, size_max, error, error_max = (_size(x) for x in (theirs.rms, theirs.max, ours.rms, ours.max))
    return Comparison(
        name=name,
        dtype=dtype,
        error=error,
        bound=_bound(factor, noise, size, dtype),
        error_max=error_max,
        bound_max=_bound(factor_max, noise_max, size_max, dtype),
        relative=ratio(error, size),
        informative=not is_lost(theirs) if dtype == "float64" else noise <= UNINFORMATIVE * size,
    )


def is_measured(theirs: TensorRecord, dtype: str) -> bool:
    """Whether a tensor is finite in R64 and in all runs that measure its noise in ``dtype``."""
    return theirs.rms is not None and None not in theirs.noise[dtype]


def is_lost(theirs: TensorRecord) -> bool:
    """Whether R64 is no truth here: moving the weights by a float64 unit moves the tensor by more than
    :data:`UNINFORMATIVE` of itself. If within :data:`BEYOND_FLOAT32` * err(R32) * u64/u32, the tensor is 0 but
    for rounding, such as the gradient of a key's bias, and is compared."""
    if None in theirs.noise["float64"] or not is_measured(theirs, "float32"):
        return False
    shrunk = _largest(theirs.noise["float32"]) * UNIT["float64"] / UNIT["float32"]
    return _largest(theirs.noise["float64"]) > max(UNINFORMATIVE * _size(theirs.rms), BEYOND_FLOAT32 * shrunk)


def of_size(theirs: TensorRecord, size: TensorStats) -> TensorRecord:
    """Return R64's record scaled to a tensor of another size, with the same relative noise. A tensor without a size in
    R64 has no noise to scale."""
    grown = ratio(_size(size.rms), _size(theirs.rms)) if size.rms else 0.0
    scale = grown if math.isfinite(grown) else 0.0

    def scaled(runs: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
        return {dtype: [one if one is None else scale * one for one in noise] for dtype, noise in runs.items()}

    return replace(
        theirs, rms=size.rms or 0.0, max=size.max or 0.0, noise=scaled(theirs.noise), noise_max=scaled(theirs.noise_max)
    )


def largest_noise(theirs: TensorRecord, dtype: str) -> float:
    """Return the RMS error of the run farthest from R64; the tensor must be measured."""
    return _largest(theirs.noise[dtype])


def relative_noise(theirs: TensorRecord, dtype: str = "float32") -> str:
    """Describe the reference's float32 or bfloat16 error relative to the tensor."""
    if not is_measured(theirs, dtype):
        return "not finite"
    return f"off by {ratio(largest_noise(theirs, dtype), _size(theirs.rms)):.1e}"


def ratio(error: float, scale: float) -> float:
    """Return ``error / scale``; 0 if the error is 0, at any scale."""
    return error / scale if scale else (0.0 if error == 0 else float("inf"))


def _largest(runs: list[float | None]) -> float:
    return max(_size(run) for run in runs)


def _size(value: float | None) -> float:
    """Return a measured size."""
    assert value is not None
    return value
