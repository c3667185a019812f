"""Records every call of a Paddle function by a user's port: its name, inputs, result and source line.

Paddle has no dispatcher that Python can watch, unlike torch. Its operations are functions of ``paddle._C_ops`` and
methods of its tensors. These are replaced once, before the user's file is imported. Outside of :func:`watch`, the
replacements only call Paddle's own functions.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import paddle
from paddle import _C_ops

from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.messages import CallOrigin
from toolkit.parity.families.pair.masks import shift_bound, tensors_of
from toolkit.parity.families.pair.replaced_functions import calling_frame, calling_line
from toolkit.parity.families.pair.score_limit import remove_limit
from toolkit.parity.measure.mask_comparisons import COMPARISONS, column_of
from toolkit.parity.measure.naming import TensorName

#: Names of the tensor methods that do not call ``paddle._C_ops``.
METHODS = (
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "div", "pow") for side in ("", "r")),
    *(f"__{name}__" for name in ("floordiv", "mod", "matmul", "gt", "ge", "lt", "le", "eq", "ne")),
    "__getitem__", "__setitem__", "clone", "detach",
)  # fmt: skip
#: Name of the plain method for each reflected method, which computes a number and a tensor: `__radd__` -> `__add__`.
PLAIN_METHODS = {name: f"__{name[3:]}" for name in METHODS if name.startswith("__r")}
#: Displayed name of each method whose own name would be unclear in a report.
DISPLAY_NAMES = {"__getitem__": "indexing", "__setitem__": "assignment"}


class Watcher(Protocol):
    """Receiver of the calls of Paddle's functions inside :func:`watch`."""

    def call(self, name: str, original: Callable, args: tuple, options: Mapping[str, Any]) -> Any:
        """Call a function of Paddle, and return its result.

        Args:
            name: name of the function, such as `matmul` or `__add__`.
            original: Paddle's own function.
            args: positional arguments of the call.
            options: keyword arguments of the call.
        """


class CallRecorder:
    """Sends every call of a Paddle function during a run to the comparator, and records the calls of named tensors.

    Args:
        sender: receiver of the calls.
        layer_fn: function that returns the reference's name of the running layer if its class is Paddle's own,
            otherwise "".

    Attributes:
        call_numbers: number of the call that computed a tensor, by the tensor's name.
        entry_lines: line of the port's code that calls a module, `file:line`, by the name of the module's input.
    """

    def __init__(self, sender: Sender, layer_fn: Callable[[], str]) -> None:
        self.sender = sender
        self.layer_fn = layer_fn
        self.call_numbers: dict[str, int] = {}
        self.entry_lines: dict[str, str] = {}
        self._count = 0
        self._is_paused = False

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Send no calls inside the ``with`` block."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def call(self, name: str, original: Callable, args: tuple, options: Mapping[str, Any]) -> Any:
        """Call a function of Paddle, send its output tensors, and return its result.

        Args:
            name: name of the function, such as `matmul` or `__add__`.
            original: Paddle's own function.
            args: positional arguments of the call.
            options: keyword arguments of the call.
        """
        if self._is_paused:
            return original(*args, **options)
        tensors = tensors_of((*args, *options.values()))
        inputs = [number for tensor in tensors if (number := self._call_number(tensor)) is not None]
        with self.pause():
            result = original(*args, **options)
            display_name = DISPLAY_NAMES.get(name, PLAIN_METHODS.get(name, name).strip("_"))
            origin = CallOrigin(calling_line(), inputs, self.layer_fn(), len(tensors))
            for value in tensors_of([args[0] if name == "__setitem__" else result]):
                self.sender.send_array("call", display_name, _values(value), origin)
                value._call = (self, self._count)
                self._count += 1
        return result

    def note(self, name: str, value: paddle.Tensor) -> None:
        """Record which call computed a tensor, in :attr:`call_numbers`.

        If the tensor is a module's input, the current line of the port's code is recorded in :attr:`entry_lines`, too.

        Args:
            name: framework-independent name of the tensor.
            value: the tensor.
        """
        if (number := self._call_number(value)) is not None:
            self.call_numbers[name] = number
            if TensorName.parse(name).kind == "input":
                self.entry_lines[name] = calling_line()

    def copy_source(self, value: paddle.Tensor, source_tensor: paddle.Tensor) -> None:
        """Record that ``value`` comes from the same call as ``source_tensor``."""
        value._call = getattr(source_tensor, "_call", None)

    def _call_number(self, value: paddle.Tensor) -> int | None:
        """Return the number of the call of this run that computed a tensor; None if no call did."""
        recorder, number = getattr(value, "_call", None) or (None, None)
        return number if recorder is self else None


#: The watcher that receives all calls; None outside of :func:`watch`.
_watcher: Watcher | None = None
#: Source location of the comparison whose bound a mutant moves by one, `file:line:column`; None without this mutant.
shifted_site: str | None = None


@contextlib.contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Pass every call of a Paddle function to ``watcher`` inside the ``with`` block."""
    global _watcher
    _watcher = watcher
    try:
        yield
    finally:
        _watcher = None


def install() -> None:
    """Replace Paddle's functions and tensor methods by watched versions, before a user's file is imported.

    It must be called once per process.
    """
    replacements = {
        id(function): _watched_function(name, remove_limit(name, function))
        for name, function in vars(_C_ops).items()
        if inspect.isbuiltin(function) and not name.startswith("_")
    }
    modules = [module for name, module in sys.modules.items() if name.startswith("paddle") and "pir" not in name]
    for owner in (_C_ops, *modules, paddle.Tensor):
        for name, function in list(vars(owner).items()):
            if id(function) in replacements:
                setattr(owner, name, replacements[id(function)])
    for name in METHODS:
        if (method := getattr(paddle.Tensor, name, None)) is not None:
            setattr(paddle.Tensor, name, _watched_function(name, method))


def _watched_function(name: str, original: Callable) -> Callable:
    """Return a replacement of a Paddle function that passes each call to the current watcher.

    If the call is the comparison at :data:`shifted_site`, its bound is moved by one first.

    Args:
        name: name of the function, such as `matmul` or `__add__`.
        original: Paddle's own function.
    """
    is_comparison = name.strip("_") in COMPARISONS

    def call(*args: Any, **options: Any) -> Any:
        if is_comparison and shifted_site is not None and shifted_site == _calling_site():
            args = shift_bound(name, args)
        return original(*args, **options) if _watcher is None else _watcher.call(name, original, args, options)

    call.__name__ = name
    return call


def _calling_site() -> str:
    """Return the current position in the port's code as `file:line:column`; "" outside of the port's code."""
    frame = calling_frame()
    return "" if frame is None else f"{calling_line()}:{column_of(frame)}"


def _values(value: paddle.Tensor) -> np.ndarray:
    """Return a tensor's values; an empty array if the tensor has no memory or no elements."""
    return value.detach().numpy() if value._is_initialized() and value.size else np.zeros(0)
