"""Replaces Paddle's own functions for a layer that knows nothing of the gate: dropout, random numbers and the signs
under ReLU come from recorded draws, and float64 stays float64.

The functions are changed once, before the user's file is imported, so that a function which the file binds to another
name is changed, too. While nothing is recorded or given, they are Paddle's own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import paddle
from paddle import nn

from toolkit.parity.candidate.places import display_path
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.pair import DrawFacts, PairMap
from toolkit.parity.measure.evaluation import TRAINING, name_in_run
from toolkit.parity.measure.naming import ModuleStack, TensorName

#: Folders of code that belongs to no port.
LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(paddle.__file__).parent, Path(__file__).parents[2]))


def in_axes_of_port(value: np.ndarray, axes: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Return a tensor of the reference in the port's shape.

    Args:
        axes: of the port's in the reference's order; empty if that is the same.
    """
    return (value.transpose(np.argsort(axes)) if value.ndim == len(axes) else value).reshape(shape)


class PairDraws(RecordedDraws):
    """The reference's draws by the port's names of them."""

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        rates: Mapping[str, float],
        pair: PairMap,
        sender: Sender | None = None,
        run: str = TRAINING,
        order: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(tensors, rates, ModuleStack(), sender, run, order)
        self.names, self.axes = pair.draws, pair.axes

    def name(self, kind: str) -> str:
        own = super().name(kind)
        return self.names.get(own, own)

    def drawn(self, kind: str, shape: Sequence[int], what: str) -> np.ndarray | None:
        """Return the numbers that the reference drew."""
        return self._find_draw(self.name(kind), shape, what)

    def _find_draw(
        self, name: str, shape: Sequence[int], description: str, rate: float | None = None
    ) -> np.ndarray | None:
        value = super()._find_draw(name, self._shape_of(name, shape), description, rate)
        return None if value is None else in_axes_of_port(value, self.axes.get(name, ()), shape)

    def named_relu(self, name: str, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        axes = self.axes.get(name, ())
        if x.ndim != len(axes):
            return super().named_relu(name, x, own)
        there = super().named_relu(name, x.transpose(axes), own.transpose(axes))
        return there.transpose([axes.index(axis) for axis in range(len(axes))])

    def _shape_of(self, name: str, shape: Sequence[int]) -> Sequence[int]:
        """Return the reference's shape of a draw if it has as many numbers, else the given one."""
        theirs = self.tensors.get(name)
        return list(theirs.shape) if theirs is not None and theirs.size == math.prod(shape) else shape

    def chosen(self, scores: paddle.Tensor, own: paddle.Tensor, descending: bool) -> paddle.Tensor | None:
        """Return R64's choice among scores along their last axis, to replace the port's ``own``; None if it is the
        same, or if there is none of this size. The port's indices are sent."""
        drawn = TensorName.parse(self.name("choice"))
        truth = self.tensors.get(str(drawn))
        theirs = self.tensors.get(str(drawn._replace(kind="scores")))
        if truth is None or theirs is None or truth.size != own.size or theirs.size != scores.size:
            return None  # whatever is wrong shows in the output
        given = own.numpy()
        self.sender.send_array("choice", name_in_run(self.run, str(drawn)), given, list(scores.shape))
        truth = truth.reshape(given.shape)
        return None if (given == truth).all() else paddle.to_tensor(truth).astype(own.dtype)


class DrawsInOrder(PairDraws):
    """Draws of Paddle's own generator, and the order in which they were made."""

    def __init__(self) -> None:
        super().__init__({}, {}, PairMap())
        self.made: list[DrawFacts] = []

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        self.made.append(DrawFacts(self.name("dropout"), list(shape), float(p)))
        numbers = paddle.tensor.random.uniform(shape, min=0.0, max=1.0)  # paddle.uniform would be a draw of the layer's
        return numbers >= p

    def drawn(self, kind: str, shape: Sequence[int], what: str) -> np.ndarray | None:
        self.made.append(DrawFacts(self.name(kind), list(shape)))
        return None

    def relu(self, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        self.made.append(DrawFacts(self.name("relu"), list(own.shape)))
        return own

    def chosen(self, scores: paddle.Tensor, own: paddle.Tensor, descending: bool) -> paddle.Tensor | None:
        self.made.append(DrawFacts(self.name("choice"), list(own.shape)))
        return None


_draws: PairDraws | None = None


def draws() -> PairDraws | None:
    """Return the draws in use."""
    return _draws


@contextlib.contextmanager
def use(draws: PairDraws | None) -> Iterator[None]:
    """Take a layer's dropout, random numbers and signs under ReLU from ``draws`` inside the block."""
    global _draws
    before, _draws = _draws, draws
    try:
        yield
    finally:
        _draws = before


def change(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace a function of Paddle's by one that asks :data:`_draws` while there are any."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call_original(*args: Any, **options: Any) -> Any:
        with use(None):  # it may call another of these functions, whose draw is its own
            return original(*args, **options)

    if not hasattr(original, "of_paddle"):
        replacement = make(call_original)
        replacement.of_paddle = original  # type: ignore[attr-defined]
        setattr(owner, name, replacement)


def _dropout(original: Callable) -> Callable:
    signature = inspect.signature(original)

    def dropout(*args: Any, **options: Any) -> paddle.Tensor:
        if "input" in options:
            options["x"] = options.pop("input")
        bound_arguments = signature.bind(*args, **options)
        bound_arguments.apply_defaults()
        x, p, axis, training, mode = (
            bound_arguments.arguments[name] for name in ("x", "p", "axis", "training", "mode")
        )
        if _draws is None or not training or not isinstance(p, (int, float)) or p == 0:
            return original(*args, **options)
        axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        shape = [size if place in axes else 1 for place, size in enumerate(x.shape)]
        kept = _draws.kept(float(p), shape).astype(x.dtype)
        return x * kept if mode == "downscale_in_infer" else x * (kept / (1.0 - p))

    return dropout


def _relu(original: Callable) -> Callable:
    def relu(x: paddle.Tensor, *args: Any, **options: Any) -> paddle.Tensor:
        own = original(x, *args, **options)
        return own if _draws is None else _draws.relu(x, own)

    return relu


def _in_float(numbers: np.ndarray, dtype: Any) -> paddle.Tensor:
    return paddle.to_tensor(numbers).astype(dtype or paddle.get_default_dtype())


def _rrelu(original: Callable) -> Callable:
    def rrelu(x: paddle.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = True, *a: Any) -> Any:
        numbers = _draws.drawn("uniform", x.shape, "slopes") if _draws is not None and training else None
        if numbers is None:
            return original(x, lower, upper, training, *a)
        slopes = lower + (upper - lower) * paddle.to_tensor(numbers).astype(x.dtype)
        return paddle.where(x > 0, x, x * slopes)

    return rrelu


def _of_shape(kind: str, description: str) -> Callable[[Callable], Callable]:
    """Change a function of a shape, which Paddle also takes as numbers: ``paddle.randn(2, 3)``."""

    def make(original: Callable) -> Callable:
        def draw(shape: Any, dtype: Any = None, *args: Any, **options: Any) -> paddle.Tensor:
            numbers = None if _draws is None else _draws.drawn(kind, list(shape), description)
            return original(shape, dtype, *args, **options) if numbers is None else _in_float(numbers, dtype)

        @functools.wraps(draw)
        def draw_numbers(*args: Any, **options: Any) -> paddle.Tensor:
            if "size" in options:
                options["shape"] = options.pop("size")
            return draw(args, **options) if args and np.ndim(args[0]) == 0 else draw(*args, **options)

        return draw_numbers

    return make


def _like(kind: str, description: str) -> Callable[[Callable], Callable]:
    def make(original: Callable) -> Callable:
        signature = inspect.signature(original)

        def draw(*args: Any, **options: Any) -> paddle.Tensor:
            arguments = signature.bind(*args, **options).arguments
            x = next(iter(arguments.values()))
            numbers = None if _draws is None else _draws.drawn(kind, x.shape, description)
            dtype = arguments.get("dtype") or x.dtype
            return original(*args, **options) if numbers is None else _in_float(numbers, dtype)

        draw.__signature__ = signature  # type: ignore[attr-defined]
        return draw

    return make


def _between(original: Callable) -> Callable:
    def uniform(shape: Any, dtype: Any = None, min: float = -1.0, max: float = 1.0, *a: Any, **options: Any) -> Any:
        numbers = None if _draws is None else _draws.drawn("uniform", list(shape), "numbers between two others")
        if numbers is None:
            return original(shape, dtype, min, max, *a, **options)
        return min + (max - min) * _in_float(numbers, dtype)

    return uniform


def _normal(original: Callable) -> Callable:
    def normal(mean: Any = 0.0, std: Any = 1.0, shape: Any = None, *a: Any, **options: Any) -> paddle.Tensor:
        shape = options.pop("size", shape)
        size = next((list(one.shape) for one in (mean, std) if isinstance(one, paddle.Tensor)), shape)
        numbers = None if _draws is None else _draws.drawn("normal", list(size), "normal numbers")
        if numbers is None:
            return original(mean, std, shape, *a, **options)
        return mean + std * _in_float(numbers, None)

    return normal


def _bernoulli(original: Callable) -> Callable:
    def bernoulli(x: paddle.Tensor, p: float | None = None, *a: Any, **options: Any) -> paddle.Tensor:
        numbers = None if _draws is None else _draws.drawn("uniform", x.shape, "a choice of two")
        if numbers is None:
            return original(x, p, *a, **options)
        return (paddle.to_tensor(numbers).astype(x.dtype) < (x if p is None else p)).astype(x.dtype)

    return bernoulli


def _multinomial(original: Callable) -> Callable:
    def multinomial(x: paddle.Tensor, num_samples: int = 1, *a: Any, **options: Any) -> paddle.Tensor:
        shape = [*x.shape[:-1], num_samples]
        numbers = None if _draws is None else _draws.drawn("multinomial", shape, "a choice of several")
        return original(x, num_samples, *a, **options) if numbers is None else paddle.to_tensor(numbers)

    return multinomial


def _whole_numbers(fractions: np.ndarray, low: int, high: int | None, dtype: Any) -> paddle.Tensor:
    """Return numbers from ``low`` to below ``high``, or from 0 to below ``low``, made of numbers from 0 to below 1."""
    least, end = (0, low) if high is None else (low, high)
    return paddle.to_tensor(np.floor(fractions.astype("float64") * (end - least)) + least).astype(dtype)


def _randint(original: Callable) -> Callable:
    def randint(low: int = 0, high: int | None = None, shape: Any = (1,), dtype: Any = None, *a: Any) -> Any:
        numbers = None if _draws is None else _draws.drawn("uniform", list(shape), "whole numbers")
        if numbers is None:
            return original(low, high, shape, dtype, *a)
        return _whole_numbers(numbers, low, high, dtype or "int64")

    return randint


def _randint_like(original: Callable) -> Callable:
    def randint_like(x: paddle.Tensor, low: int = 0, high: int | None = None, dtype: Any = None, *a: Any) -> Any:
        numbers = None if _draws is None else _draws.drawn("uniform", x.shape, "whole numbers")
        if numbers is None:
            return original(x, low, high, dtype, *a)
        return _whole_numbers(numbers, low, high, dtype or x.dtype)

    return randint_like


def _randperm(original: Callable) -> Callable:
    def randperm(n: int, dtype: Any = "int64", *a: Any, **options: Any) -> paddle.Tensor:
        numbers = None if _draws is None else _draws.drawn("uniform", [n], "an order")
        if numbers is None:
            return original(n, dtype, *a, **options)
        return paddle.to_tensor(numbers.argsort(kind="stable")).astype(dtype)

    return randperm


def _fill_from_draws(
    kind: str, description: str, names: Sequence[str], make: Callable
) -> Callable[[Callable], Callable]:
    """Change a method that fills a tensor.

    Args:
        kind: kind of the draws.
        description: description of the drawn numbers.
        names: names of the method's arguments after the tensor.
        make: function of the recorded numbers and these arguments that returns the new values.
    """

    def change_method(original: Callable) -> Callable:
        signature = inspect.signature(original)

        def fill(x: paddle.Tensor, *args: Any, **options: Any) -> paddle.Tensor:
            numbers = None if _draws is None else _draws.drawn(kind, x.shape, description)
            if numbers is None:
                return original(x, *args, **options)
            call = signature.bind(x, *args, **options)
            call.apply_defaults()
            result = make(_in_float(numbers, None), *(call.arguments[name] for name in names))
            return paddle.assign(result.astype(x.dtype), x)

        return fill

    return change_method


#: Method that fills a tensor -> kind and description of its draws, its arguments, and a function of the drawn numbers.
FILLING: dict[str, tuple[str, str, tuple[str, ...], Callable]] = {
    "uniform_": ("uniform", "numbers between two others", ("min", "max"), lambda x, low, high: low + (high - low) * x),
    "normal_": ("normal", "normal numbers", ("mean", "std"), lambda x, mean, std: mean + std * x),
    "bernoulli_": ("uniform", "a choice of two", ("p",), lambda x, p: x < p),
    "exponential_": ("uniform", "exponential numbers", ("lam",), lambda x, rate: -paddle.log1p(-x) / rate),
}


def _embedding(original: Callable) -> Callable:
    signature = inspect.signature(original)

    def embedding(*args: Any, **options: Any) -> paddle.Tensor:
        call = signature.bind(*args, **options)
        if _makes_dense:
            call.arguments["sparse"] = False
        return original(*call.args, **call.kwargs)

    return embedding


_makes_dense = False


@contextlib.contextmanager
def dense_gradients() -> Iterator[None]:
    """Inside the block, the gradient of an embedding has all its rows, also with ``sparse=True``. A parameter that has
    got a sparse gradient can be given no other."""
    global _makes_dense
    before, _makes_dense = _makes_dense, True
    try:
        yield
    finally:
        _makes_dense = before


def install() -> None:
    """Change Paddle once, before a user's file is imported."""
    change(nn.functional, "dropout", _dropout)
    change(nn.functional.common, "dropout", _dropout)
    change(nn.functional, "relu", _relu)
    change(nn.functional.activation, "relu", _relu)
    change(nn.functional, "embedding", _embedding)
    change(nn.functional, "rrelu", _rrelu)
    change(nn.functional.activation, "rrelu", _rrelu)
    change(paddle, "randn", _of_shape("normal", "normal numbers"))
    change(paddle, "standard_normal", _of_shape("normal", "normal numbers"))
    change(paddle, "rand", _of_shape("uniform", "numbers between 0 and 1"))
    change(paddle, "uniform", _between)
    change(paddle, "normal", _normal)
    change(paddle, "bernoulli", _bernoulli)
    change(paddle, "rand_like", _like("uniform", "numbers between 0 and 1"))
    change(paddle, "randn_like", _like("normal", "normal numbers"))
    change(paddle, "randint", _randint)
    change(paddle, "randint_like", _randint_like)
    change(paddle, "randperm", _randperm)
    for name, (kind, description, arguments, make) in FILLING.items():
        change(paddle.Tensor, name, _fill_from_draws(kind, description, arguments, make))
    for owner in (paddle, paddle.Tensor):
        change(owner, "multinomial", _multinomial)
    _install_widening()


@contextlib.contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """Make the model's dtype the default inside the block, as for a layer's masks and position tables."""
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        yield
    finally:
        paddle.set_default_dtype(before)


#: Lines where a port would have left float64.
leaks: list[str] = []


#: Dtypes that hold fewer digits than float64.
NARROW = ("float32", "float16", "bfloat16")
#: Functions that describe a ``dtype`` and do not compute in it.
DESCRIPTIONS = ("finfo", "iinfo")
_keeps_double = False


@contextlib.contextmanager
def keeps_double() -> Iterator[None]:
    """Inside the block, whatever a port's code asks for in float32 is in float64, as on the reference's side: a cast, a
    new tensor, a softmax's ``dtype``. The run in float64 judges only the function. The lines that cast float64 down are
    recorded in :data:`leaks`."""
    global _keeps_double
    before, _keeps_double = _keeps_double, True
    try:
        yield
    finally:
        _keeps_double = before


def _widening(original: Callable) -> Callable:
    signature = inspect.signature(original)

    def widened(*args: Any, **options: Any) -> Any:
        if not _keeps_double:
            return original(*args, **options)
        try:
            given = signature.bind(*args, **options)
        except TypeError:  # Paddle has a second way to call some
            return original(*args, **({**options, "dtype": "float64"} if _is_narrow(options.get("dtype")) else options))
        if not _is_narrow(given.arguments.get("dtype")):
            return original(*args, **options)
        given.arguments["dtype"] = "float64"
        first = next(iter(given.arguments.values()))
        if isinstance(first, paddle.Tensor) and first.dtype == paddle.float64:
            place = calling_line(short=True)
            if place and place not in leaks:
                leaks.append(place)
        return original(*given.args, **given.kwargs)

    widened.of_paddle = getattr(original, "of_paddle", original)  # type: ignore[attr-defined]
    return widened


def _is_narrow(dtype: Any) -> bool:
    return str(dtype).rpartition(".")[2] in NARROW


def _storing(original: Callable) -> Callable:
    """Make a method that stores a value in a tensor of float64 take a table of float32, which a port computes so."""

    def store(tensor: paddle.Tensor, value: Any, *args: Any, **options: Any) -> Any:
        if _keeps_double and _is_narrow(getattr(value, "dtype", "")) and tensor.dtype == paddle.float64:
            value = value.astype("float64")
        return original(tensor, value, *args, **options)

    return store


def _install_widening() -> None:
    for name in ("set_value", "copy_"):
        change(paddle.Tensor, name, _storing)
    for owner in (paddle, nn.functional, paddle.Tensor):
        for name, function in list(vars(owner).items()):
            is_public = inspect.isfunction(function) and not name.startswith("_")
            if is_public and name not in DESCRIPTIONS and "dtype" in inspect.signature(function).parameters:
                setattr(owner, name, _widening(function))


def calling_line(short: bool = False) -> str:
    """Return ``file:line`` of the port's code that leads here; "" if none does.

    Args:
        short: give the file's name alone.
    """
    frame = calling_frame()
    if frame is None:
        return ""
    file = Path(frame.f_code.co_filename)
    return f"{file.name if short else display_path(file)}:{frame.f_lineno}"


def calling_frame() -> FrameType | None:
    """Return the innermost frame of the port's code that leads here; None if none does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    return frame
