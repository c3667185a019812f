"""Every call of Paddle's functions by a user's port: what it computes, from what, and at which line.

Paddle has no dispatcher that Python can watch, as torch has one. Its operations are functions of ``paddle._C_ops`` and
methods of its tensors, and these are replaced once, before the user's file is imported. While no run is watched, they
are Paddle's own.
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

from toolkit.parity.families.pair.masks import tensors_of, with_shifted_bound
from toolkit.parity.families.pair.replaced import calling_frame, calling_line
from toolkit.parity.families.pair.score_limit import without_limit
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.messages import CallOrigin
from toolkit.parity.measure.mask_comparisons import COMPARISONS, column_of
from toolkit.parity.measure.naming import TensorName

#: Methods of a tensor that do not go through ``paddle._C_ops``.
METHODS = (
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "div", "pow") for side in ("", "r")),
    *(f"__{name}__" for name in ("floordiv", "mod", "matmul", "gt", "ge", "lt", "le", "eq", "ne")),
    "__getitem__", "__setitem__", "clone", "detach",
)  # fmt: skip

#: Of a number and a tensor.
REVERSED = {name: f"__{name[3:]}" for name in METHODS if name.startswith("__r")}
#: What a report calls some of them.
SHOWN = {"__getitem__": "indexing", "__setitem__": "assignment"}


class Watcher(Protocol):
    """What :func:`watch` gives the calls to."""

    def call(self, name: str, original: Callable, args: tuple, options: Mapping[str, Any]) -> Any:
        """Call a function of Paddle's, and return its result."""


class Calls:
    """Sends the calls of one run.

    Args:
        over: is told of each.
        layer: returns the reference's name of the layer of Paddle's own that is running, or "".

    Attributes:
        computed_by: tensor name -> number of the call that computed it.
        entered_at: name of a module's input -> the port's line that calls the module.
    """

    def __init__(self, sender: Sender, layer: Callable[[], str]) -> None:
        self.sender = sender
        self.layer = layer
        self.computed_by: dict[str, int] = {}
        self.entered_at: dict[str, str] = {}
        self._count = 0
        self._is_inside = False

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Inside the ``with`` block no call is sent."""
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    def call(self, name: str, original: Callable, args: tuple, options: Mapping[str, Any]) -> Any:
        """Call a function of Paddle and send its output."""
        if self._is_inside:
            return original(*args, **options)
        tensors = tensors_of((*args, *options.values()))
        inputs = [number for one in tensors if (number := self._number(one)) is not None]
        with self.pause():
            result = original(*args, **options)
            shown = SHOWN.get(name, REVERSED.get(name, name).strip("_"))
            origin = CallOrigin(calling_line(), inputs, self.layer(), len(tensors))
            for value in tensors_of([args[0] if name == "__setitem__" else result]):
                self.sender.send_array("call", shown, _numbers(value), origin)
                value._call = (self, self._count)
                self._count += 1
        return result

    def note(self, name: str, value: paddle.Tensor) -> None:
        """Note the call that computed a tensor."""
        if (number := self._number(value)) is not None:
            self.computed_by[name] = number
            if TensorName.parse(name).kind == "input":
                self.entered_at[name] = calling_line()

    def copy_source(self, value: paddle.Tensor, source: paddle.Tensor) -> None:
        """Record that ``value`` comes from the same call as ``source``."""
        value._call = getattr(source, "_call", None)

    def _number(self, value: paddle.Tensor) -> int | None:
        of, number = getattr(value, "_call", None) or (None, None)
        return number if of is self else None


_calls: Watcher | None = None
#: Place of a comparison whose bound is moved by one: ``file:line:column``.
shifted_site: str | None = None


@contextlib.contextmanager
def watch(calls: Watcher) -> Iterator[None]:
    """Inside the ``with`` block, give every call to a watcher."""
    global _calls
    _calls = calls
    try:
        yield
    finally:
        _calls = None


def install() -> None:
    """Change Paddle once, before a user's file is imported."""
    changed = {
        id(function): _watched(name, without_limit(name, function))
        for name, function in vars(_C_ops).items()
        if inspect.isbuiltin(function) and not name.startswith("_")
    }
    modules = [one for name, one in sys.modules.items() if name.startswith("paddle") and "pir" not in name]
    for owner in (_C_ops, *modules, paddle.Tensor):
        for name, function in list(vars(owner).items()):
            if id(function) in changed:
                setattr(owner, name, changed[id(function)])
    for name in METHODS:
        if (method := getattr(paddle.Tensor, name, None)) is not None:
            setattr(paddle.Tensor, name, _watched(name, method))


def _watched(name: str, original: Callable) -> Callable:
    is_comparison = name.strip("_") in COMPARISONS

    def call(*args: Any, **options: Any) -> Any:
        if is_comparison and shifted_site is not None and shifted_site == _calling_site():
            args = with_shifted_bound(name, args)
        return original(*args, **options) if _calls is None else _calls.call(name, original, args, options)

    call.__name__ = name
    return call


def _calling_site() -> str:
    frame = calling_frame()
    return "" if frame is None else f"{calling_line()}:{column_of(frame)}"


def _numbers(value: paddle.Tensor) -> np.ndarray:
    return value.detach().numpy() if value._is_initialized() and value.size else np.zeros(0)
