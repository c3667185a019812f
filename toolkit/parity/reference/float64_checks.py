"""Changes that keep the reference in float64, and modes that detect the remaining operations below float64."""

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

from toolkit.parity.exchange.results import SATURATED_BELOW
from toolkit.parity.reference.recorder import set_attribute


@contextlib.contextmanager
def keep_float64() -> Iterator[list[str]]:
    """Inside the ``with`` block, ``Tensor.float()`` returns a float64 tensor unchanged.

    transformers' language-model loss calls it. The block gets a list, which collects the source location of each such
    call. The report names these locations as leaks of the reference.
    """
    leaks: list[str] = []
    original = torch.Tensor.float

    def keep_double(tensor, *args, **kwargs):
        """Return a float64 tensor unchanged, and record the calling line; cast any other tensor to float32."""
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


#: Dtypes with fewer digits than float64.
NARROW_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Prefixes of the names of functions that use a tensor's shape or device, not its values.
SHAPED_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_")
#: Path prefixes of torch's files and of the files of ``toolkit/parity``.
TORCH, TOOLKIT = (str(Path(file).parent) + "/" for file in (torch.__file__, Path(__file__).parents[1]))
#: Names of this project's functions that call a function on behalf of the reference's code.
PASSED_THROUGH = ("__torch_function__", "__torch_dispatch__", "keep_double", "hash_vectors", "relu", "attention")


class NarrowingWatch(TorchDispatchMode):
    """Detects each operation that turns float64 into a narrower float dtype, in the forward and in the backward.

    These are the leaks that :func:`keep_float64` does not prevent. Boolean and integer results do not count, and
    float32 tables that are cast to float64 lose no digits.

    Attributes:
        places: ``file.py:LINE`` of the reference's code, or the autograd node of the backward, in execution order.
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
        """Return a description of the running autograd node, such as ``the backward (MulBackward0)``.

        The result is None outside a backward, and if the forward already has a leak, whose backward is not reported.
        """
        node = torch._C._current_autograd_node()
        return f"the backward ({type(node).__name__})" if node is not None and not self.places else None


class NanWatch(TorchDispatchMode):
    """Finds the first operation with a NaN in its result.

    Attributes:
        first: name and source line of this operation, such as ``log, model.py:12``; empty before the first NaN.
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
    """Return whether an operation has a float64 input and a result in a narrower float dtype.

    Args:
        function: the dispatched operation.
        inputs: all arguments of the operation.
        result: result of the operation.
    """
    results = result if isinstance(result, (tuple, list)) else (result,)
    if not any(isinstance(r, torch.Tensor) and r.dtype in NARROW_DTYPES and r.numel() for r in results):
        return False
    if function.overloadpacket.__name__.startswith(SHAPED_LIKE):
        return False
    input_tensors = _pytree.tree_leaves(inputs)
    return any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in input_tensors)


def calling_line(frame: FrameType | None) -> str | None:
    """Return the innermost line outside torch and this package that leads to a call, such as ``model.py:12``.

    The result is None if this package itself makes the call, or if no other code is running, as in a backward.

    Args:
        frame: frame of the call; None for no frame.
    """
    caller = calling_frame(frame)
    return None if caller is None else f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame outside torch and this package that leads to ``frame`` (see :func:`calling_line`)."""
    while frame is not None:
        file = frame.f_code.co_filename
        is_own = file.startswith(TOOLKIT)
        if is_own and frame.f_code.co_name not in PASSED_THROUGH:
            return None
        if not is_own and not file.startswith(TORCH):
            return frame
        frame = frame.f_back
    return None


class ExactNormalizer(TorchFunctionMode):
    """Inside the ``with`` block, computes x - logsumexp(x) as (x - max) - log(sum(exp(x - max))).

    The reference's softmax is exp(x - logsumexp(x)). If every score of a row is masked, logsumexp(x) is -1e9 + log(K),
    with K scores in the row. At -1e9, float64 keeps 7 digits of log(K) and float32 none, so each of the K weights
    becomes 1 instead of 1/K. Such a position attends only to padding, so no result depends on it. But its truth would
    be wrong by 1e-7, and its noise baseline would be 100%. On the demo recipe, a correct port had twice the semantic
    bound without this change.

    Args:
        counting: returns whether rows are counted.

    Attributes:
        saturated: number of counted rows with every score masked.
    """

    def __init__(self, counting: Callable[[], bool]) -> None:
        super().__init__()
        self.counting = counting
        self.parts: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.saturated = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.logsumexp:
            normalizer = function(*args, **kwargs)
            scores, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
            largest = scores.detach().amax(dim, keepdim=True)
            self.saturated += int((largest < -1e4).sum()) if self.counting() else 0
            rest = (scores - largest).exp().sum(dim, keepdim=True).log()
            self.parts[id(normalizer)] = (normalizer, largest, rest)
            return normalizer
        if function in (torch.Tensor.sub, torch.Tensor.__sub__, torch.sub) and id(args[1]) in self.parts:
            _, largest, rest = self.parts.pop(id(args[1]))
            return (args[0] - largest) - rest
        return function(*args, **kwargs)


class SaturationWatch(TorchFunctionMode):
    """Measures the share of saturated rows of each attention inside the ``with`` block.

    A row is saturated if all weights except the largest together are below ``SATURATED_BELOW``. In float32, such a row
    has hardly any weight besides the largest.

    Attributes:
        shares: share of saturated rows in the first softmax of each module, by module.

    Args:
        module_fn: returns the dotted path of the running module.
    """

    def __init__(self, module_fn: Callable[[], str]) -> None:
        super().__init__()
        self.module = module_fn
        self.shares: dict[str, float] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        module = self.module()
        if module in self.shares:  # a later softmax of a module weighs the hash rounds
            return result
        if function in (torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax):
            others = 1 - result.detach().amax(-1)
        elif function is torch.logsumexp:
            others = -torch.expm1(args[0].detach().amax(-1) - result.detach().squeeze(-1))
        else:
            return result
        self.shares[module] = float((others < SATURATED_BELOW).double().mean())
        return result
