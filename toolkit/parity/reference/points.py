"""Points that the tensors of a run pass through, forward and backward: each is handed on, and may be replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from toolkit.parity.measure.masked_scores import left_as_they_are

#: Called with the name and value of everything that is recorded, in execution order. An output's value is the
#: reference's own memory, which may change when it goes on: who keeps it keeps a copy.
Keep = Callable[[str, np.ndarray], None]


def ignore(name: str, value: np.ndarray) -> None:
    """Keeps nothing."""


def values_of(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor as they are now, without a copy where they are in the host's memory."""
    return tensor.numpy(force=True)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy: the reference goes on to change some tensors in place (CTRL scales its embedded tokens so)."""
    return np.array(tensor.detach().cpu().numpy())


class Operation(NamedTuple):
    """What a call of torch's inside a module is.

    Attributes:
        kind: what its calls are counted by, module by module.
        results: names of the results, one call after another, the last again and again; None for one without a name.
        enters: the name of its first argument, if that is the result of something that has no name itself.
    """

    kind: str
    results: tuple[str | None, ...]
    enters: str | None = None


class Points:
    """What to do at every point.

    Args:
        keep: called with the name and value of every tensor that arrives, ``gradient:NAME`` in the backward.
        truth: what each goes on as, by name; one that is not there goes on as it is.
        nudge: other numbers move what goes on by one unit in the last place, in other directions; 0: not at all. On the
            very same input an operation is always off by the same, which may be little by luck.
    """

    def __init__(self, keep: Keep, truth: Mapping[str, np.ndarray] | None = None, nudge: int = 0) -> None:
        self.keep = keep
        self.truth = {} if truth is None else truth
        self.nudge = nudge

    def pass_through(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """What the run goes on with in place of ``x``; in the backward its gradient passes through, too."""
        return _Point.apply(x, self, name)

    def pass_back(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """As :meth:`pass_through`, of the gradient alone."""
        return _BackwardPoint.apply(x, self, name)

    def replaced(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Hand a tensor on, and give what goes on in its place: always another tensor."""
        value = to_numpy(x)
        self.keep(name, value)
        if name not in self.truth:
            return x.clone()
        true = self.truth[name]
        truth = true.astype(value.dtype)
        given, unmasked = moved(truth, self.nudge), left_as_they_are(name, true, self.truth)
        if unmasked is not None:  # a mask's own number is no result: one unit of -1e9 in float32 is 64
            given = np.where(unmasked, given, truth)
        return torch.from_numpy(given.reshape(value.shape)).to(x.device)


def moved(value: np.ndarray, nudge: int) -> np.ndarray:
    """A copy, every element moved by one unit in the last place, by draws that differ with ``nudge``; 0: none. What is
    0 is so exactly, and stays; what stands for minus infinity stays finite."""
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
    """Names what functions of torch give inside the reference's modules, and lets it pass through the points.

    Args:
        recorder: knows which module is running.
        find: given the path of the module, a function of torch and its arguments, gives what operation that is, or
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
