"""The same computation with its constants as float32 holds them.

Many of Paddle's kernels keep a number that is part of an operation in float32, whatever the tensors' dtype: elu's
alpha, hardtanh's limits, an exponent, the 1/49 of an average, the weights of an interpolation. In float64 a right port
then differs by up to 1e-8, and its author can do nothing about it. A reference run with such a constant tells how much
that moves each tensor. A constant that is wrong by more than its rounding moves it further.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import RoundedConstants
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.reference.clean import calling_line
from toolkit.parity.reference.noise import in_runs
from toolkit.parity.reference.points import Keep, ignore
from toolkit.parity.reference.step import make_step

aten = torch.ops.aten

#: A tensor that agrees to this part of what the rounding of a constant would move refutes it.
CLEAR = 8.0
#: Most runs of the reference; what is left then counts as not refuted.
MOST_RUNS = 100
#: What the backward of Paddle's norm adds to the norm.
NORM_EPSILON = 1e-12
#: Operations that only move, choose or compare.
WITHOUT = ("full", "fill", "masked_fill", "constant_pad", "arange", "scalar_tensor", "where", "lt", "gt", "le", "ge")
#: Operations that divide by a number of elements, and the place of the window's size among their arguments.
AVERAGES = {"avg_pool2d": 1, "avg_pool3d": 1, "avg_pool2d_backward": 2, "avg_pool3d_backward": 2}
UPSAMPLED = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")


def run(job: Job, folder: Path) -> RoundedConstants:
    """Return how far the rounding of constants moves each tensor from R64, of those that the port may round.

    A group of constants is refuted by a tensor of the port's that agrees though their rounding would move it, unless
    they cancel where all are rounded. A refuted group is halved, until it is a single constant that the port holds in
    float64.
    """
    step = make_step(job, folder)
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    measured: dict[str, tuple[float, float]] = files.read_json(folder / "reference" / files.MEASURED)
    step.run("float64", ignore)  # sets the signs and choices of all other runs
    step.evaluate(ignore)

    def moved_by(rounding: ConstantsRounded) -> dict[str, TensorRecord]:
        records = {name: TensorRecord(shape=[]) for name in truth}

        def once(dtype: str, number: int, nudge: int, measure: Keep) -> None:
            with rounding:
                step.run(dtype, measure)
                step.evaluate(measure)

        in_runs(once, truth, records, {"float64": range(1)})
        return {name: record for name, record in records.items() if record.noise}

    def is_refuted(moved: Mapping[str, TensorRecord]) -> bool:
        beyond = (
            min(_size(moved[name]), _size(whole[name])) > CLEAR * max(limits)
            for name, limits in measured.items()
            if name in moved and name in whole
        )
        return any(beyond)

    every = ConstantsRounded()
    whole = moved_by(every)
    kept: list[tuple[list[str], dict[str, TensorRecord]]] = []
    left, runs = [list(every.found)], 1
    while left:
        keys = left.pop()
        moved = whole if len(keys) == len(every.found) else moved_by(ConstantsRounded(keys))
        runs += 1
        if runs > MOST_RUNS or not is_refuted(moved):
            kept.append((keys, moved))
        elif len(keys) > 1:
            left += [keys[: len(keys) // 2], keys[len(keys) // 2 :]]
    shown = [
        key
        for keys, moved in kept
        if any(_size(moved[name]) > bound for name, (_, bound) in measured.items() if name in moved)
        for key in keys
    ]
    return RoundedConstants(_in_all([moved for _, moved in kept]), {key: every.found[key] for key in shown})


def _size(record: TensorRecord) -> float:
    return record.noise["float64"][0] or 0.0


def _in_all(moved: Sequence[Mapping[str, TensorRecord]]) -> dict[str, TensorRecord]:
    """Return as noise what the rounding of several groups moves each tensor in all."""

    def total(values: Sequence[float | None]) -> dict[str, list[float | None]]:
        return {"float64": [None if None in values else sum(filter(None, values))]}

    names = dict.fromkeys(name for one in moved for name in one)
    of = {name: [one[name] for one in moved if name in one] for name in names}
    return {
        name: TensorRecord(
            shape=[],
            noise=total([one.noise["float64"][0] for one in found]),
            noise_max=total([one.noise_max["float64"][0] for one in found]),
        )
        for name, found in of.items()
    }


def subsets(keys: Sequence[str]) -> list[Sequence[str]]:
    """Return all constants of a list, and each half of them: what one moves may cancel another's."""
    return [keys, keys[::2], keys[1::2]] if len(keys) > 1 else [keys]


class ConstantsRounded(TorchDispatchMode):
    """Inside the ``with`` block, float64 operations take constants that float32 does not hold as it holds them.

    Args:
        chosen: keys of the constants; None for all.

    Attributes:
        found: by its key, each as ``operation constant (file.py:LINE)``.
    """

    def __init__(self, chosen: Collection[str] | None = None) -> None:
        super().__init__()
        self.chosen = chosen
        self.found: dict[str, str] = {}
        self._norms: dict[int, str | None] = {}  # where each was computed, by its address
        self._caller: FrameType | None = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self._caller = sys._getframe(1)
        try:
            return self._computed(function, args, kwargs or {})
        finally:
            self._caller = None

    def _computed(self, function: Any, args: tuple, kwargs: dict) -> Any:
        name = function.overloadpacket.__name__
        inputs = [one for one in args if isinstance(one, torch.Tensor)]
        if name.startswith(WITHOUT) or not any(one.dtype == torch.float64 for one in inputs):
            return function(*args, **kwargs)
        if name.removesuffix("_backward") in UPSAMPLED:
            return self._upsampled(function, name, args, kwargs)
        if name == "linalg_vector_norm":
            result = function(*args, **kwargs)
            self._norms[result.data_ptr()] = calling_line(self._caller)
            return result
        if name == "_weight_norm_interface":
            weight, norm = function(*args, **kwargs)
            self._norms[norm.data_ptr()] = calling_line(self._caller)
            return weight, norm
        if name == "_weight_norm_interface_backward":
            return self._weight_norm_backward(function, *args)
        norm = args[1].data_ptr() if function is aten.div.Tensor and isinstance(args[1], torch.Tensor) else 0
        if norm in self._norms and calling_line(self._caller) is None:  # in a backward
            return function(args[0], args[1] + NORM_EPSILON if self._takes_norm(norm) else args[1])
        if name in ("div", "div_") and isinstance(args[1], int) and args[1]:  # Paddle multiplies by 1 over it
            return function(args[0], 1 / self._share(name, 1 / args[1]), *args[2:], **kwargs)
        if count := _averaged(name, args):
            return function(*args, **kwargs) * (self._share(name, 1 / count) * count)
        result = function(*self._rounded(name, args), **self._rounded(name, kwargs))
        if name.removesuffix("_backward") in ("smooth_l1_loss", "huber_loss"):  # Paddle divides by it, too
            width = args[-1]
            result = result * (self._share(f"{name}'s divisor", width) / width)
        return result

    def _rounded(self, name: str, given: Any) -> Any:
        return tree_map(lambda one: self._share(name, one) if isinstance(one, float) else one, given)

    def _share(self, name: str, constant: float) -> float:
        """Return a constant of an operation, rounded if it is one that this run rounds."""
        held = float(np.float32(constant))
        if held == constant or not math.isfinite(held):
            return constant
        return held if self._takes(name, constant, f"{name.strip('_')} {constant:.6g}") else constant

    def _takes(self, name: str, constant: float, called: str, place: str | None = None) -> bool:
        """Whether this run rounds a constant of an operation at a line. A backward, which Paddle computes by another
        kernel, has none."""
        place = place or calling_line(self._caller)
        key = f"{name}:{constant!r}:{place}"
        if self.chosen is not None and key not in self.chosen:
            return False
        self.found[key] = f"{called} ({place})" if place else f"{called} of a backward"
        return True

    def _takes_norm(self, norm: int) -> bool:
        """Whether this run adds to a norm, which is at that address, in its backward."""
        return self._takes("norm_backward", NORM_EPSILON, f"norm's {NORM_EPSILON:g}", self._norms[norm])

    def _weight_norm_backward(
        self, function: Any, gradient: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norm: torch.Tensor, axis: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of v and g where the weight is g v / norm, and the norm's own backward adds to it."""
        of_v, of_g = function(gradient, v, g, norm, axis)
        if self._takes_norm(norm.data_ptr()):
            of_v = of_v + of_g * g * v / norm**2 * (1 - norm / (norm + NORM_EPSILON))
        return of_v, of_g

    def _upsampled(self, function: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """Interpolate with weights that are computed in float32."""
        is_backward = name.endswith("_backward")
        x, size = args[0], args[1]
        if not self._takes(name, 1.0, f"weights of {name.removesuffix('_backward')}"):
            return function(*args, **kwargs)
        forward = getattr(aten, name.removesuffix("_backward")).default
        given = args[3:] if is_backward else args[2:]
        sizes = args[2][2:] if is_backward else x.shape[2:]
        for axis, (length, wanted) in enumerate(zip(sizes, size, strict=True)):
            weights = _weights_along(forward, axis, len(sizes), length, wanted, given).double()
            moved = torch.tensordot(x, weights if not is_backward else weights.T, dims=([axis + 2], [0]))
            x = moved.movedim(-1, axis + 2)
        return x


def _averaged(name: str, args: tuple) -> int:
    """Return how many elements an operation averages over; 0 for any other."""
    if name in AVERAGES:
        window = args[AVERAGES[name]]
        return math.prod(window) if len(window) > 1 else window[0] ** 2
    if name.startswith("_adaptive_avg_pool"):
        is_backward = name.endswith("_backward")
        large, small = (args[1].shape[2:], args[0].shape[2:]) if is_backward else (args[0].shape[2:], args[1])
        return math.prod(large) // math.prod(small)
    if name.startswith("hardsigmoid"):  # of which it is a sixth
        return 6
    if name == "mean":
        axes = args[1] if len(args) > 1 and args[1] is not None else range(args[0].ndim)
        return math.prod(args[0].shape[axis] for axis in axes)
    return 0


def _weights_along(forward: Any, axis: int, axes: int, length: int, wanted: int, given: tuple) -> torch.Tensor:
    """Return the matrix (length, wanted) by which an interpolation maps an axis, in float32."""
    shape = [1] * axes
    shape[axis] = length
    sizes = [1] * axes
    sizes[axis] = wanted
    scales = [None] * axes
    scales[axis] = given[1 + axis] if len(given) > 1 + axis else None
    eye = torch.eye(length, dtype=torch.float32).reshape(length, 1, *shape)
    return forward(eye, sizes, given[0], *scales).reshape(length, wanted)
