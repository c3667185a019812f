"""Keep the reference in float64 where its own code does not, and detect where it leaves float64 all the same."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from toolkit.parity.job.results import SATURATED_BELOW
from toolkit.parity.reference.recorder import set_attribute


@contextlib.contextmanager
def no_downcast() -> Iterator[list[str]]:
    """Keep float64 where the reference's code says ``.float()`` (as its language-model loss does). Yields a list of the
    places where that happened, to be reported as leaks of the reference."""
    leaks: list[str] = []
    original = torch.Tensor.float

    def keep_double(tensor, *args, **kwargs):
        if tensor.dtype != torch.float64:
            return original(tensor, *args, **kwargs)
        caller = sys._getframe(1)
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        if place not in leaks:
            leaks.append(place)
        return tensor

    undo = set_attribute(torch.Tensor, "float", keep_double)
    try:
        yield leaks
    finally:
        undo()


#: Dtypes in which float64 loses digits.
NARROW = (torch.float32, torch.float16, torch.bfloat16)
#: Functions that use a tensor's shape or device, not its values.
SHAPED_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_")
TORCH, TOOLKIT = (str(Path(file).parent) + "/" for file in (torch.__file__, Path(__file__).parents[1]))
#: This package's functions that pass on the reference's own calls.
PASSED_THROUGH = ("__torch_function__", "__torch_dispatch__", "keep_double", "choose", "relu", "attention")


class NarrowingWatch(TorchDispatchMode):
    """Detects every operation from float64 to a narrower float dtype, in the forward and in the backward.

    These are the leaks that :func:`no_downcast` does not stop. A bool or integer result loses nothing that was meant to
    be kept, and float32 tables that enter float64 lose nothing at all.

    Attributes:
        places: ``file.py:LINE`` of the reference's code, or the node of the backward, in execution order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if _narrows(function, (args, kwargs), result):
            place = calling_line(sys._getframe(1)) or self._backward_of()
            if place and place not in self.places:
                self.places.append(place)
        return result

    def _backward_of(self) -> str | None:
        """The autograd node at work. That of a cast seen in the forward says nothing new."""
        node = torch._C._current_autograd_node()
        return f"the backward ({type(node).__name__})" if node is not None and not self.places else None


class NanWatch(TorchDispatchMode):
    """Finds the first operation that gives NaN.

    Attributes:
        first: the operation with its line, once there is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        floats = (r for r in _pytree.tree_leaves(result) if isinstance(r, torch.Tensor) and r.is_floating_point())
        if not self.first and any(bool(value.isnan().any()) for value in floats):
            place = calling_line(sys._getframe(1))
            self.first = f"{function.overloadpacket.__name__}{f', {place}' if place else ''}"
        return result


def _narrows(function: Any, inputs: Any, result: Any) -> bool:
    results = result if isinstance(result, (tuple, list)) else (result,)
    if not any(isinstance(r, torch.Tensor) and r.dtype in NARROW and r.numel() for r in results):
        return False
    if function.overloadpacket.__name__.startswith(SHAPED_LIKE):
        return False
    given = _pytree.tree_leaves(inputs)
    return any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in given)


def calling_line(frame: FrameType | None) -> str | None:
    """Return the innermost line outside torch and this package that leads to the call in ``frame``; None if the call is
    this package's own, or no such code is running, as in a backward."""
    caller = calling_frame(frame)
    return None if caller is None else f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of :func:`calling_line`."""
    while frame is not None:
        file = frame.f_code.co_filename
        own = file.startswith(TOOLKIT)
        if own and frame.f_code.co_name not in PASSED_THROUGH:
            return None
        if not own and not file.startswith(TORCH):
            return frame
        frame = frame.f_back
    return None


class ExactNormaliser(TorchFunctionMode):
    """Compute x - logsumexp(x) as (x - max) - log(sum(exp(x - max))) wherever the reference has the former.

    The reference's softmax is exp(x - logsumexp(x)). If every score of a row is masked, logsumexp(x) is -1e9 + log(K),
    and at -1e9 float64 keeps 7 digits of log(K), float32 none: each of the K weights becomes 1 instead of 1/K. These
    positions see only padding, so no result depends on them; but a truth that is wrong by 1e-7 is none, and a noise
    baseline of 100% measures nothing. Measured on the demo recipe: without this, a right port had twice the semantic
    bound.

    Attributes:
        saturated: number of rows with every score masked, counted while ``counting`` returns True.
    """

    def __init__(self, counting: Callable[[], bool]) -> None:
        super().__init__()
        self.counting = counting
        self.parts: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.saturated = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.logsumexp:
            normaliser = function(*args, **kwargs)
            scores, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
            largest = scores.detach().amax(dim, keepdim=True)
            self.saturated += int((largest < -1e4).sum()) if self.counting() else 0
            rest = (scores - largest).exp().sum(dim, keepdim=True).log()
            self.parts[id(normaliser)] = (normaliser, largest, rest)
            return normaliser
        if function in (torch.Tensor.sub, torch.Tensor.__sub__, torch.sub) and id(args[1]) in self.parts:
            _, largest, rest = self.parts.pop(id(args[1]))
            return (args[0] - largest) - rest
        return function(*args, **kwargs)


class SaturationWatch(TorchFunctionMode):
    """Measures the saturated share of each attention: rows with all weight on one position, as far as float32 can tell.

    Attributes:
        shares: module -> share of rows whose other positions together get less than ``SATURATED_BELOW``.

    Args:
        module: returns the path of the running module.
    """

    def __init__(self, module: Callable[[], str]) -> None:
        super().__init__()
        self.module = module
        self.shares: dict[str, float] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        module = self.module()
        if module in self.shares:  # what follows in a module are the shares of hash rounds
            return result
        if function in (torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax):
            others = 1 - result.detach().amax(-1)
        elif function is torch.logsumexp:
            others = -torch.expm1(args[0].detach().amax(-1) - result.detach().squeeze(-1))
        else:
            return result
        self.shares[module] = float((others < SATURATED_BELOW).double().mean())
        return result
