"""Points that the tensors of a run pass through, forward and backward: each is recorded and may be replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from toolkit.parity.measure.masked_scores import find_unmasked
from toolkit.parity.measure.real_numbers import as_complex, as_real

#: Called with the name and value of everything that is recorded, in execution order. An output's value is the
#: reference's own memory, which may change later: copy it to keep it.
Keep = Callable[[str, np.ndarray], None]


def ignore(name: str, value: np.ndarray) -> None:
    """Keeps nothing."""


def values_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the current values of a tensor, without a copy if they are in host memory.

    Complex values are returned as both parts. The gradient of an embedding may be sparse.
    """
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return as_real(tensor.numpy(force=True))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor as :func:`values_of` gives it: the reference later changes some in place (CTRL scales its embedded
    tokens so)."""
    return np.array(values_of(tensor))


def to_torch(value: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """Make a tensor of such values, of the shape, the device and the kind of numbers of another."""
    value = as_complex(value) if like.is_complex() else value
    return torch.from_numpy(value.reshape(like.shape)).to(like.device)  # torch's own reshape would make a view


class Operation(NamedTuple):
    """A call of a torch function inside a module.

    Attributes:
        kind: key by which its calls are counted in each module.
        results: names of the results, call after call, the last one repeated; None for a result without a name.
        enters: the name of its first argument, if that is the result of an unnamed call.
    """

    kind: str
    results: tuple[str | None, ...]
    enters: str | None = None


class Points:
    """What to do at every point.

    Args:
        keep: called with the name and value of every tensor that arrives, ``gradient:NAME`` in the backward.
        truth: replacements by name; any other tensor goes on unchanged.
        nudge: moves replacements by one unit in the last place, in directions that differ with the number; 0: not at
            all. On the same input an operation always has the same error, which may be small by luck.

    Attributes:
        only: whether there is a point of a name; None if there is one of every name.
        padding: where a packed output has padding, by name, (B, T, D). The reference has no gradient there.
    """

    only: Callable[[str], bool] | None = None

    def __init__(self, keep: Keep, truth: Mapping[str, np.ndarray] | None = None, nudge: int = 0) -> None:
        self.keep = keep
        self.truth = {} if truth is None else truth
        self.nudge = nudge
        self.padding: dict[str, np.ndarray] = {}

    def pass_through(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return what replaces ``x`` in the run; in the backward its gradient passes through, too."""
        return x if self.only and not self.only(name) else _Point.apply(x, self, name)

    def pass_back(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """As :meth:`pass_through`, of the gradient alone."""
        return x if self.only and not self.only(name) else _BackwardPoint.apply(x, self, name)

    def replaced(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Record a tensor and return its replacement: always a new tensor."""
        value = to_numpy(x)
        self.keep(name, value)
        if name not in self.truth:
            return x.clone()
        true = self.truth[name]
        truth = true.astype(value.dtype)
        given, unmasked = moved(truth, self.nudge), find_unmasked(name, true, self.truth)
        if unmasked is not None:  # a mask's own number is no result: one unit of -1e9 in float32 is 64
            given = np.where(unmasked, given, truth)
        return to_torch(given, x)


def moved(value: np.ndarray, nudge: int) -> np.ndarray:
    """Copy, with every element moved by one unit in the last place, by draws that differ with ``nudge``; 0: none. An
    element 0 is exact and stays; a stand-in for minus infinity stays finite."""
    if not nudge:
        return value.copy()
    up = np.random.default_rng(nudge).integers(0, 2, value.shape, dtype=bool)
    with np.errstate(over="ignore"):
        near = np.nextafter(value, np.where(up, np.inf, -np.inf).astype(value.dtype))
    return np.where((value == 0) | ~np.isfinite(near), value, near)


class _Point(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, points, name):
        ctx.points, ctx.name = points, name
        return points.replaced(name, x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.points.replaced(f"gradient:{ctx.name}", grad), None, None


class _BackwardPoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, points, name):
        ctx.points, ctx.name = points, name
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.points.replaced(f"gradient:{ctx.name}", grad), None, None


class OperationWatch(TorchFunctionMode):
    """Names results of torch functions inside the reference's modules, and passes them through the points.

    Args:
        recorder: knows which module is running.
        find: called with the path of the module, a function of torch and its arguments; returns the operation, or
            None.

    Attributes:
        paused: while True nothing is named.
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
            args = (self.recorder.at(operation.enters, args[0]), *args[1:])
        result = function(*args, **kwargs)
        if not result.is_floating_point():
            return result
        number = self.recorder.stack.count(operation.kind)
        name = operation.results[min(number, len(operation.results) - 1)]
        return result if name is None else self.recorder.at(name, result)
