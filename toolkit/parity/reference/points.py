"""Points that the tensors of a run pass through, in the forward and in the backward.

A point records a tensor and may replace it by R64's tensor (forced input).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from toolkit.parity.measure.masked_scores import find_unmasked
from toolkit.parity.measure.real_numbers import as_complex, as_real

#: Receiver of recorded tensors: called with the name and value of each, in execution order. The value of an output is
#: the reference's own memory, which may change later: copy it to keep it.
Keep = Callable[[str, np.ndarray], None]


def keep_nothing(name: str, value: np.ndarray) -> None:
    """Ignore a recorded tensor, as a receiver for runs whose tensors are not needed."""


def values_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the current values of a tensor, without a copy if they are in host memory.

    Complex numbers are returned as real and imaginary parts, and a sparse tensor, such as an embedding's gradient, as a
    dense array.
    """
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return as_real(tensor.numpy(force=True))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor's values, converted as by :func:`values_of`.

    The reference later changes some tensors in place, as CTRL scales its embedded tokens.
    """
    return np.array(values_of(tensor))


def to_torch(value: np.ndarray, target: torch.Tensor) -> torch.Tensor:
    """Return an array as a tensor with the shape and device of another tensor.

    Args:
        value: the array; real and imaginary parts if ``target`` is complex.
        target: tensor with the shape and device.
    """
    value = as_complex(value) if target.is_complex() else value
    return torch.from_numpy(value.reshape(target.shape)).to(target.device)  # torch's own reshape would make a view


class Operation(NamedTuple):
    """A call of a torch function inside a module that has a name in the trace.

    Attributes:
        kind: kind of the operation; its calls are counted for each module and kind.
        results: name of the result of each call; the last name is repeated. None for a result without a name.
        enters: name of the first argument, if it is the result of a call without a name.
    """

    kind: str
    results: tuple[str | None, ...]
    enters: str | None = None


class Points:
    """The points of a run, which record tensors and replace them by R64's tensors.

    Args:
        keep: called with the name and value of each tensor at its point; ``gradient:NAME`` in the backward.
        truth: R64's tensors, the replacements, by name. Any other tensor passes unchanged. None for no replacements.
        nudge: 0 for unchanged replacements. Any other number moves each replacement by one unit in the last place, in
            directions that depend on the number. On equal inputs, an operation would always have the same error, which
            may be small by chance.

    Attributes:
        only: returns whether a name has a point; None if all names have points.
        padding: mask of the padding of each packed output, by name, (B, T, D). The reference has no gradient there.
    """

    only: Callable[[str], bool] | None = None

    def __init__(self, keep: Keep, truth: Mapping[str, np.ndarray] | None = None, nudge: int = 0) -> None:
        self.keep = keep
        self.truth = {} if truth is None else truth
        self.nudge = nudge
        self.padding: dict[str, np.ndarray] = {}

    def pass_through(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return the replacement of a tensor at the point ``name``; its gradient passes through this point, too.

        Args:
            name: name of the point.
            x: tensor of the run.
        """
        return x if self.only and not self.only(name) else _Point.apply(x, self, name)

    def pass_back(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` unchanged; only its gradient passes through the point ``name`` in the backward.

        Args:
            name: name of the point.
            x: tensor of the run.
        """
        return x if self.only and not self.only(name) else _BackwardPoint.apply(x, self, name)

    def replace(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Record a tensor and return its replacement, which is always a new tensor.

        Args:
            name: name of the tensor.
            x: tensor of the run. Without a replacement, its copy is returned.
        """
        value = to_numpy(x)
        self.keep(name, value)
        if name not in self.truth:
            return x.clone()
        true_value = self.truth[name]
        rounded_truth = true_value.astype(value.dtype)
        replacement, is_unmasked = nudge_array(rounded_truth, self.nudge), find_unmasked(name, true_value, self.truth)
        if is_unmasked is not None:  # a mask's number is not nudged: one unit of -1e9 in float32 is 64
            replacement = np.where(is_unmasked, replacement, rounded_truth)
        return to_torch(replacement, x)


def nudge_array(array: np.ndarray, nudge: int) -> np.ndarray:
    """Return a copy of an array with each element moved by one unit in the last place.

    An element 0 is exact and is not moved. A number that represents minus infinity remains finite.

    Args:
        array: floating-point numbers.
        nudge: seed of each element's direction, up or down; 0 moves nothing.
    """
    if not nudge:
        return array.copy()
    is_up = np.random.default_rng(nudge).integers(0, 2, array.shape, dtype=bool)
    with np.errstate(over="ignore"):
        neighbor = np.nextafter(array, np.where(is_up, np.inf, -np.inf).astype(array.dtype))
    return np.where((array == 0) | ~np.isfinite(neighbor), array, neighbor)


class _Point(torch.autograd.Function):
    """Autograd function that replaces a tensor in the forward, and its gradient in the backward, at a point."""

    @staticmethod
    def forward(ctx, x, points, name):
        """Return the value that replaces ``x`` at the point with this name."""
        ctx.points, ctx.name = points, name
        return points.replace(name, x)

    @staticmethod
    def backward(ctx, grad):
        """Return the value that replaces the gradient at the point."""
        return ctx.points.replace(f"gradient:{ctx.name}", grad), None, None


class _BackwardPoint(torch.autograd.Function):
    """Autograd function that copies a tensor in the forward, and replaces its gradient at a point."""

    @staticmethod
    def forward(ctx, x, points, name):
        """Return a copy of ``x``."""
        ctx.points, ctx.name = points, name
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        """Return the value that replaces the gradient at the point."""
        return ctx.points.replace(f"gradient:{ctx.name}", grad), None, None


class OperationWatch(TorchFunctionMode):
    """Names results of torch functions inside the reference's modules, and passes them through the points.

    Args:
        recorder: recorder of the run, with the running modules.
        find: returns the operation, or None, given the path of the running module, a torch function and its arguments.

    Attributes:
        paused: whether functions are now called without a name for their results.
    """

    def __init__(self, recorder: Any, find: Callable[[str, Callable, tuple], Operation | None]) -> None:
        super().__init__()
        self.recorder = recorder
        self.find = find
        self.paused = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        operation = None if self.paused else self.find(self.recorder.stack.module, function, (*args, *kwargs.values()))
        if operation is None:
            return function(*args, **kwargs)
        if operation.enters is not None:
            args = (self.recorder.pass_operation(operation.enters, args[0]), *args[1:])
        result = function(*args, **kwargs)
        if not result.is_floating_point():
            return result
        number = self.recorder.stack.count(operation.kind)
        name = operation.results[min(number, len(operation.results) - 1)]
        return result if name is None else self.recorder.pass_operation(name, result)
