"""The same computation with its constants as float32 holds them.

Many of Paddle's kernels keep a number that is part of an operation in float32, whatever the tensors' dtype: elu's
alpha, hardtanh's limits, an exponent, the 1/49 of an average, the weights of an interpolation. In float64 a right port
then differs by up to 1e-8, and its author can do nothing about it. A reference run with such constants tells how much
that moves each tensor. A constant that is wrong by more than its rounding moves it further.
"""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from toolkit.parity.job.job import Job
from toolkit.parity.job.results import RoundedConstants
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.reference.clean import calling_line
from toolkit.parity.reference.noise import in_runs
from toolkit.parity.reference.points import Keep, ignore
from toolkit.parity.reference.step import make_step

aten = torch.ops.aten

#: Runs that measure what rounding moves: one with all constants, the others with half of them.
RUNS = 4
#: Operations that only move, choose or compare.
WITHOUT = ("full", "fill", "masked_fill", "constant_pad", "arange", "scalar_tensor", "where", "lt", "gt", "le", "ge")
#: Operations that divide by a number of elements, and the place of the window's size among their arguments.
AVERAGES = {"avg_pool2d": 1, "avg_pool3d": 1, "avg_pool2d_backward": 2, "avg_pool3d_backward": 2}
UPSAMPLED = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")


def run(job: Job, folder: Path) -> RoundedConstants:
    """Return how far the rounding of constants moves each tensor from R64, and the constants."""
    step = make_step(job, folder)
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    step.run("float64", ignore)  # sets the signs and choices of all other runs
    step.evaluate(ignore)
    records = {name: TensorRecord(shape=[]) for name in truth}
    found: dict[str, None] = {}

    def once(dtype: str, number: int, nudge: int, measure: Keep) -> None:
        with ConstantsRounded(number) as rounding:
            step.run(dtype, measure)
            step.evaluate(measure)
        found.update(rounding.found)

    in_runs(once, truth, records, {"float64": range(RUNS)})
    return RoundedConstants(records, list(found))


class ConstantsRounded(TorchDispatchMode):
    """Inside the ``with`` block, float64 operations take constants that float32 does not hold as it holds them.

    Args:
        seed: 0 for all constants; any other for half of them, drawn by it: what one moves may cancel another's.

    Attributes:
        found: each as ``operation constant (file.py:LINE)``.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.found: dict[str, None] = {}
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
        if held == constant or not math.isfinite(held) or not self._is_chosen(name, constant):
            return constant
        self._note(f"{name.strip('_')} {constant:.6g}")
        return held

    def _note(self, what: str) -> None:
        if place := calling_line(self._caller):
            self.found.setdefault(f"{what} ({place})")

    def _is_chosen(self, name: str, constant: float) -> bool:
        key = f"{self.seed}:{name.removesuffix('_backward')}:{constant!r}"
        return self.seed == 0 or hashlib.sha256(key.encode()).digest()[0] < 128

    def _upsampled(self, function: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """Interpolate with weights that are computed in float32."""
        is_backward = name.endswith("_backward")
        x, size = args[0], args[1]
        if not self._is_chosen(name, 1.0):
            return function(*args, **kwargs)
        forward = getattr(aten, name.removesuffix("_backward")).default
        given = args[3:] if is_backward else args[2:]
        sizes = args[2][2:] if is_backward else x.shape[2:]
        self._note(f"weights of {name.removesuffix('_backward')}")
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
