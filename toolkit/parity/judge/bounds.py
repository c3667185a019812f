"""The largest allowed difference between a tensor of the port and of the reference: verdicts 2 and 3 for one tensor.

R64 is the reference in float64, which counts as the truth. err(X) is the RMS (root mean square) of X - R64. The noise
baseline is err(R32), the largest error of several float32 runs of the reference, whose weights are moved by one unit in
the last place. It measures how much this network, with these weights and inputs, amplifies rounding. So each bound is
relative to the reference's own rounding, and no tolerance is absolute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName

#: Unit of rounding of each dtype: half the distance from 1 to the next number. bfloat16 has the unit of float32, since
#: everything except the matrix products is computed in float32. The products' rounding is measured by the reference.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-24}

#: Verdict 2: err(P64), the error of the port in float64, may be this many times err(R32) * 2^-29, or this many times
#: the change of R64 when its weights move by one unit of float64, if that is larger. (In float32 an error stops growing
#: once it is as large as the tensor; in float64 it still grows.) Correct ports were measured at 0.5 to 2.4 times
#: err(R32) * 2^-29; a wrong epsilon is at 10^6 and more. The second factor is for the largest element's error.
SEMANTIC_FACTOR, SEMANTIC_FACTOR_MAX = 8.0, 32.0
#: Verdict 3: err(P32), the error of the port in float32, may be this many times err(R32); the same holds in bfloat16.
#: The largest element's error is an extreme value and therefore noisier, so its factor is larger.
ROUNDING_FACTOR, ROUNDING_FACTOR_MAX = 3.0, 10.0
#: Added to both bounds, in units of rounding at the tensor's scale: about the error of a short sum. It matters if the
#: noise baseline is 0 by luck, for example for a scalar that the reference's float32 happens to hit exactly.
FLOOR_UNITS = 16.0
#: If err(R32) exceeds this fraction of the tensor, its float32 value carries no information, and only float64 decides.
#: If the noise of R64 exceeds it, the tensor is not judged.
UNINFORMATIVE = 0.1
#: If the noise of R64 exceeds err(R32) * 2^-29 by more than this factor, R64 itself has lost its digits. Gradients that
#: are 0 except for rounding were measured at 3 to 18, gradients that had lost their digits at 7e7 and more.
BEYOND_FLOAT32 = 1e4


def float32_bounds(noise: tuple[float, float], scale: tuple[float, float]) -> tuple[float, float]:
    """Return the largest allowed RMS and maximum of the difference of two float32 values of a tensor (verdict 3).

    Args:
        noise: RMS and maximum of the tensor's rounding error.
        scale: RMS and maximum of the tensor itself.
    """
    return (
        _bound(ROUNDING_FACTOR, noise[0], scale[0], "float32"),
        _bound(ROUNDING_FACTOR_MAX, noise[1], scale[1], "float32"),
    )


def _bound(factor: float, noise: float, magnitude: float, dtype: str) -> float:
    """Return the largest allowed error of a tensor.

    Args:
        factor: factor of the noise.
        noise: rounding error of the reference.
        magnitude: RMS or maximum of the tensor in R64.
        dtype: dtype of the port's run.
    """
    return factor * noise + FLOOR_UNITS * UNIT[dtype] * magnitude


@dataclass(frozen=True)
class Comparison:
    """The errors of one tensor of the port in one dtype, and their bounds.

    Attributes:
        name: name of the tensor: ``output:MODULE#CALL``, ``stream:LAYER#WHICH``, ``gradient:PARAMETER``, ``logits`` or
        ``loss``.
        dtype: dtype of the port's run.
        error: RMS of the difference from R64.
        bound: largest allowed ``error``.
        error_max: largest absolute difference from R64.
        bound_max: largest allowed ``error_max``.
        relative: ``error`` divided by the RMS of R64.
        informative: whether the reference's own value in this dtype is more than noise.
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
        """Whether the errors are within their bounds; an uninformative tensor always passes."""
        return not self.informative or (self.error <= self.bound and self.error_max <= self.bound_max)

    @property
    def margin(self) -> float:
        """The larger of the two errors, each divided by its bound; a tensor fails above 1."""
        return max(ratio(self.error, self.bound), ratio(self.error_max, self.bound_max))


def compare(name: str, theirs: TensorRecord, ours: TensorStats, dtype: str) -> Comparison:
    """Return the comparison of a tensor of the port with R64: its errors and their bounds.

    Args:
        name: name of the tensor.
        theirs: record of the reference's tensor, which is measured in ``dtype`` (:func:`is_measured`).
        ours: statistics of the port's difference from R64, all finite.
        dtype: dtype of the port's run.
    """
    noise, noise_max = _largest(theirs.noise[dtype]), _largest(theirs.noise_max[dtype])
    if dtype == "float64":
        factor, factor_max, shrink = SEMANTIC_FACTOR, SEMANTIC_FACTOR_MAX, UNIT["float64"] / UNIT["float32"]
        if is_measured(theirs, "float32"):
            noise = max(noise, shrink * _largest(theirs.noise["float32"]))
            noise_max = max(noise_max, shrink * _largest(theirs.noise_max["float32"]))
    else:
        factor, factor_max = ROUNDING_FACTOR, ROUNDING_FACTOR_MAX
    tensor_name = TensorName.parse(name)
    if tensor_name.kind == "loss" and tensor_name.is_of_training:  # a single number is its own extreme value
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
    """Return whether a tensor is finite in R64 and in all runs that measure its noise in ``dtype``."""
    return theirs.rms is not None and None not in theirs.noise[dtype]


def is_lost(theirs: TensorRecord) -> bool:
    """Return whether R64 has lost the digits of a tensor, so that it cannot serve as the truth.

    R64 has lost them if moving the weights by one unit of float64 moves the tensor by more than :data:`UNINFORMATIVE`
    of its size and by more than :data:`BEYOND_FLOAT32` * err(R32) * 2^-29. A tensor below the second limit is 0 except
    for rounding, such as the gradient of a key's bias, and is compared.
    """
    if None in theirs.noise["float64"] or not is_measured(theirs, "float32"):
        return False
    shrunk = _largest(theirs.noise["float32"]) * UNIT["float64"] / UNIT["float32"]
    return _largest(theirs.noise["float64"]) > max(UNINFORMATIVE * _size(theirs.rms), BEYOND_FLOAT32 * shrunk)


def rescale_record(theirs: TensorRecord, size_stats: TensorStats) -> TensorRecord:
    """Return the reference's record of a tensor for a tensor of another size, with the same relative noise.

    The result has no noise if the tensor is zero in R64.

    Args:
        theirs: record of the reference's tensor.
        size_stats: statistics of the other tensor.
    """
    growth = ratio(_size(size_stats.rms), _size(theirs.rms)) if size_stats.rms else 0.0
    scale = growth if math.isfinite(growth) else 0.0

    def scaled_noise(run_noise: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
        """Return the noise of all runs times the scale, by dtype."""
        return {dtype: [one if one is None else scale * one for one in noise] for dtype, noise in run_noise.items()}

    return replace(
        theirs,
        rms=size_stats.rms or 0.0,
        max=size_stats.max or 0.0,
        noise=scaled_noise(theirs.noise),
        noise_max=scaled_noise(theirs.noise_max),
    )


def largest_noise(theirs: TensorRecord, dtype: str) -> float:
    """Return the largest RMS error of the reference's further runs in a dtype; the tensor must be measured."""
    return _largest(theirs.noise[dtype])


def describe_noise(theirs: TensorRecord, dtype: str = "float32") -> str:
    """Describe the reference's largest error in float32 or bfloat16 relative to the tensor: ``off by 1.2e-07``."""
    if not is_measured(theirs, dtype):
        return "not finite"
    return f"off by {ratio(largest_noise(theirs, dtype), _size(theirs.rms)):.1e}"


def ratio(difference: float, scale: float) -> float:
    """Return ``difference / scale``; 0 if the difference is 0, at any scale."""
    return difference / scale if scale else (0.0 if difference == 0 else float("inf"))


def _largest(run_errors: list[float | None]) -> float:
    """Return the largest of the runs' errors; no error may be None."""
    return max(_size(run) for run in run_errors)


def _size(value: float | None) -> float:
    """Return a measured value, which must not be None."""
    assert value is not None
    return value
