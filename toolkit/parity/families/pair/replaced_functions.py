"""Replaces Paddle's random functions, dropout and ReLU, so that a user's layer replays the reference's draws.

It also keeps float64 computations in float64 where the user's code asks for float32. The functions are replaced once,
before the user's file is imported. So the replacement also reaches a function that the file binds to another name. If
no draws are in use (:func:`use_draws`), the replacements only call Paddle's own functions.
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
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import paddle
from paddle import nn

from toolkit.parity.candidate.places import display_path
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.job.pair import DrawFacts, PairMap
from toolkit.parity.measure.evaluation import TRAINING, name_in_run
from toolkit.parity.measure.naming import ModuleStack, TensorName

#: Folders of Paddle and of the gate. Code in other folders belongs to the port.
LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(paddle.__file__).parent, Path(__file__).parents[2]))


def to_port_axes(value: np.ndarray, axes: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Return a tensor of the reference in the axes and shape of the port.

    Args:
        value: tensor in the reference's axes.
        axes: permutation of the port's axes that results in the reference's order; empty if the orders are the same.
        shape: shape of the tensor in the port.
    """
    return (value.transpose(np.argsort(axes)) if value.ndim == len(axes) else value).reshape(shape)


class PairDraws(RecordedDraws):
    """The reference's recorded draws and choices, which a pair's port requests by its own names.

    Args:
        tensors: recorded draws by the reference's name, such as `dropout:encoder.layers.0`.
        rates: rates of the recorded dropout masks, by the reference's name.
        pair_map: correspondence of the two sides, with the names of the draws.
        sender: receiver of the port's requests and choices; None to discard them.
        run: name of the run whose draws are replayed, such as the training step or an evaluation.
        order: names of the draws of an earlier run in order, by kind; None if the running modules name the draws.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        rates: Mapping[str, float],
        pair_map: PairMap,
        sender: Sender | None = None,
        run: str = TRAINING,
        order: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(tensors, rates, ModuleStack(), sender, run, order)
        self.names, self.axes = pair_map.draws, pair_map.axes

    def name(self, kind: str) -> str:
        """Count a draw of the running module, and return the name that the draw has in the reference.

        A draw without a counterpart in the pair's map keeps the port's name.

        Args:
            kind: kind of the draw, such as `dropout`.
        """
        own = super().name(kind)
        return self.names.get(own, own)

    def replay_draw(self, kind: str, shape: Sequence[int], description: str) -> np.ndarray | None:
        """Return the reference's numbers for the running module's next draw; None if they are missing.

        Args:
            kind: kind of the draw, such as `normal` or `uniform`.
            shape: shape of the draw in the port.
            description: description of the numbers for the report.
        """
        return self._find_draw(self.name(kind), shape, description)

    def _find_draw(
        self, name: str, shape: Sequence[int], description: str, rate: float | None = None
    ) -> np.ndarray | None:
        """Return a recorded draw in the port's axes and shape; None if it is missing.

        The request is sent to the comparator.

        Args:
            name: the reference's name of the draw.
            shape: shape of the draw in the port.
            description: description of the numbers for the report.
            rate: rate of a dropout mask; None for other draws.
        """
        value = super()._find_draw(name, self._reference_shape(name, shape), description, rate)
        return None if value is None else to_port_axes(value, self.axes.get(name, ()), shape)

    def named_relu(self, name: str, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        """Return the output of a ReLU if R64 decides which inputs are positive.

        Args:
            name: the reference's name of the ReLU's signs.
            x: input of the ReLU, in the port's axes.
            own: the port's own output of the ReLU, whose signs are sent.
        """
        axes = self.axes.get(name, ())
        if x.ndim != len(axes):
            return super().named_relu(name, x, own)
        reference_output = super().named_relu(name, x.transpose(axes), own.transpose(axes))
        return reference_output.transpose([axes.index(axis) for axis in range(len(axes))])

    def _reference_shape(self, name: str, shape: Sequence[int]) -> Sequence[int]:
        """Return the reference's shape of a draw if it has as many numbers as ``shape``, otherwise ``shape``."""
        draw = self.tensors.get(name)
        return list(draw.shape) if draw is not None and draw.size == math.prod(shape) else shape

    def replay_choice(self, scores: paddle.Tensor, own: paddle.Tensor, *, descending: bool) -> paddle.Tensor | None:
        """Return R64's choice among scores along their last axis, and send the port's choice.

        The result is None if both choices are the same, or if the choice was not recorded in this size.

        Args:
            scores: scores of the port, with the choice along the last axis.
            own: indices that the port has chosen.
            descending: whether larger scores come first.
        """
        choice_name = TensorName.parse(self.name("choice"))
        truth = self.tensors.get(str(choice_name))
        true_scores = self.tensors.get(str(choice_name._replace(kind="scores")))
        if truth is None or true_scores is None or truth.size != own.size or true_scores.size != scores.size:
            return None  # the output shows the difference
        indices = own.numpy()
        self.sender.send_array("choice", name_in_run(self.run, str(choice_name)), indices, list(scores.shape))
        truth = truth.reshape(indices.shape)
        return None if (indices == truth).all() else paddle.to_tensor(truth).astype(own.dtype)


class DrawRecorder(PairDraws):
    """Source of random draws that uses Paddle's own generator and records the draws in order.

    Attributes:
        draw_facts: facts about each draw and each discrete choice so far.
    """

    def __init__(self) -> None:
        super().__init__({}, {}, PairMap())
        self.draw_facts: list[DrawFacts] = []

    def draw_mask(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        """Return a random mask of the elements that dropout keeps, and record the draw.

        Args:
            p: rate of the dropout.
            shape: shape of the mask.
        """
        self.draw_facts.append(DrawFacts(self.name("dropout"), list(shape), float(p)))
        numbers = paddle.tensor.random.uniform(shape, min=0.0, max=1.0)  # paddle.uniform would be recorded as a draw
        return numbers >= p

    def replay_draw(self, kind: str, shape: Sequence[int], description: str) -> np.ndarray | None:
        """Record a draw, and return None, so that Paddle draws the numbers.

        Args:
            kind: kind of the draw, such as `normal` or `uniform`.
            shape: shape of the draw.
            description: unused.
        """
        self.draw_facts.append(DrawFacts(self.name(kind), list(shape)))
        return None

    def relu(self, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        """Record the signs under a ReLU as a discrete choice, and return the ReLU's own output.

        Args:
            x: unused.
            own: output of the ReLU.
        """
        self.draw_facts.append(DrawFacts(self.name("relu"), list(own.shape)))
        return own

    def replay_choice(self, scores: paddle.Tensor, own: paddle.Tensor, *, descending: bool) -> paddle.Tensor | None:
        """Record a discrete choice, and return None, so that the port's own choice is used.

        Args:
            scores: unused.
            own: indices that the port has chosen.
            descending: unused.
        """
        self.draw_facts.append(DrawFacts(self.name("choice"), list(own.shape)))
        return None


#: The draws in use (:func:`use_draws`).
_draws: PairDraws | None = None


def draws() -> PairDraws | None:
    """Return the draws in use; None if Paddle's own functions are used."""
    return _draws


@contextlib.contextmanager
def use_draws(draws: PairDraws | None) -> Iterator[None]:
    """Let dropout, random numbers, ReLU signs and discrete choices come from ``draws`` inside the ``with`` block.

    If ``draws`` is None, Paddle's own functions are used.
    """
    global _draws
    before, _draws = _draws, draws
    try:
        yield
    finally:
        _draws = before


def replace_function(owner: Any, name: str, make_replacement: Callable[[Callable], Callable]) -> None:
    """Replace a function of Paddle, unless it is already replaced.

    Args:
        owner: module or class that has the function.
        name: name of the function.
        make_replacement: function that returns the replacement, given a version of the original that uses no recorded
            draws.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def call_original(*args: Any, **options: Any) -> Any:
        with use_draws(None):  # it may call another replaced function, which then draws its own numbers
            return original(*args, **options)

    if not hasattr(original, "paddle_original"):
        replacement = make_replacement(call_original)
        replacement.paddle_original = original  # type: ignore[attr-defined]
        setattr(owner, name, replacement)


def _dropout(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``dropout`` that takes its mask from the draws in use."""
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
        shape = [size if index in axes else 1 for index, size in enumerate(x.shape)]
        keep_mask = _draws.draw_mask(float(p), shape).astype(x.dtype)
        return x * keep_mask if mode == "downscale_in_infer" else x * (keep_mask / (1.0 - p))

    return dropout


def _relu(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``relu`` that takes the signs of its inputs from the draws in use."""

    def relu(x: paddle.Tensor, *args: Any, **options: Any) -> paddle.Tensor:
        own = original(x, *args, **options)
        return own if _draws is None else _draws.relu(x, own)

    return relu


#: Names of the attributes of a recurrent network that Paddle's kernel reads, except for the settings of one layer.
RECURRENT_SETTINGS = ("time_major", "num_directions", "hidden_size", "mode", "training", "_dropout_state")


def _recurrent_network(original: Callable) -> Callable:
    """Return a replacement of Paddle's kernel of a recurrent network whose dropout comes from the draws in use.

    In Paddle, the kernel draws the masks between the layers. So each layer is a separate call of the kernel.
    """

    def run_layers(network: Any, x: paddle.Tensor, initial_states: Any, sequence_length: Any) -> Any:
        num_layers = network.num_layers
        if _draws is None or num_layers == 1 or not network.dropout or not network.training:
            return original(network, x, initial_states, sequence_length)
        # Paddle lists the weights of all layers before their biases, two for each layer and direction.
        parts = [
            network._all_weights[2 * part * network.num_directions :][: 2 * network.num_directions]
            for part in range(2 * num_layers)
        ]
        state_parts = [state.chunk(num_layers) for state in initial_states]
        settings = {name: getattr(network, name) for name in RECURRENT_SETTINGS}
        final_states = []
        for index, layer_states in enumerate(zip(*state_parts, strict=True)):
            if index > 0:
                x = nn.functional.dropout(x, network.dropout)
            weights = [*parts[index], *parts[num_layers + index]]
            layer = SimpleNamespace(**settings, num_layers=1, dropout=0.0, _all_weights=weights, input_size=x.shape[-1])
            x, states = original(layer, x, layer_states, sequence_length)
            final_states.append(states if isinstance(states, tuple) else (states,))
        states = tuple(map(paddle.concat, zip(*final_states, strict=True)))
        return x, states if len(states) > 1 else states[0]

    return run_layers


def _to_tensor(numbers: np.ndarray, dtype: Any) -> paddle.Tensor:
    """Return recorded numbers as a tensor in ``dtype``, or by default in Paddle's default dtype."""
    return paddle.to_tensor(numbers).astype(dtype or paddle.get_default_dtype())


def _rrelu(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``rrelu`` that takes its random slopes from the draws in use."""

    def rrelu(
        x: paddle.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = True, **options: Any
    ) -> Any:
        numbers = _draws.replay_draw("uniform", x.shape, "slopes") if _draws is not None and training else None
        if numbers is None:
            return original(x, lower, upper, training, **options)
        slopes = lower + (upper - lower) * paddle.to_tensor(numbers).astype(x.dtype)
        return paddle.where(x > 0, x, x * slopes)

    return rrelu


def _gumbel_softmax(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``gumbel_softmax`` that takes its Gumbel noise from the draws in use."""

    def gumbel_softmax(
        x: paddle.Tensor, temperature: float = 1.0, hard: bool = False, axis: int = -1, **options: Any
    ) -> paddle.Tensor:
        numbers = None if _draws is None else _draws.replay_draw("uniform", x.shape, "Gumbel noise")
        if numbers is None:
            return original(x, temperature, hard, axis, **options)
        # As torch computes it: the negative logarithm of the exponential numbers of ``exponential_``.
        noise = -paddle.log(-paddle.log1p(-_to_tensor(numbers, x.dtype)))
        probabilities = nn.functional.softmax((x + noise) / temperature, axis)
        if not hard:
            return probabilities
        indices = paddle.argmax(probabilities, axis=axis, keepdim=True)
        one_hot = paddle.put_along_axis(paddle.zeros_like(probabilities), indices, 1.0, axis)
        return one_hot - probabilities.detach() + probabilities  # its gradient is the probabilities' gradient

    return gumbel_softmax


def _replace_shaped(kind: str, description: str) -> Callable[[Callable], Callable]:
    """Return a function that creates a replacement of a random function of a shape, such as ``paddle.randn``.

    The shape may also be given as separate numbers: ``paddle.randn(2, 3)``.

    Args:
        kind: kind of the draws, such as `normal`.
        description: description of the drawn numbers for the report.
    """

    def make(original: Callable) -> Callable:
        def draw(shape: Any, dtype: Any = None, *args: Any, **options: Any) -> paddle.Tensor:
            numbers = None if _draws is None else _draws.replay_draw(kind, list(shape), description)
            return original(shape, dtype, *args, **options) if numbers is None else _to_tensor(numbers, dtype)

        @functools.wraps(draw)
        def draw_numbers(*args: Any, **options: Any) -> paddle.Tensor:
            if "size" in options:
                options["shape"] = options.pop("size")
            return draw(args, **options) if args and np.ndim(args[0]) == 0 else draw(*args, **options)

        return draw_numbers

    return make


def _replace_like(kind: str, description: str) -> Callable[[Callable], Callable]:
    """Return a function that creates a replacement of a random function such as ``paddle.randn_like``.

    Args:
        kind: kind of the draws, such as `normal`.
        description: description of the drawn numbers for the report.
    """

    def make(original: Callable) -> Callable:
        signature = inspect.signature(original)

        def draw(*args: Any, **options: Any) -> paddle.Tensor:
            arguments = signature.bind(*args, **options).arguments
            x = next(iter(arguments.values()))
            numbers = None if _draws is None else _draws.replay_draw(kind, x.shape, description)
            dtype = arguments.get("dtype") or x.dtype
            return original(*args, **options) if numbers is None else _to_tensor(numbers, dtype)

        draw.__signature__ = signature  # type: ignore[attr-defined]
        return draw

    return make


def _uniform(original: Callable) -> Callable:
    """Return a replacement of ``paddle.uniform`` that takes its numbers from the draws in use."""

    def uniform(shape: Any, dtype: Any = None, min: float = -1.0, max: float = 1.0, *args: Any, **options: Any) -> Any:
        numbers = None if _draws is None else _draws.replay_draw("uniform", list(shape), "numbers between two others")
        if numbers is None:
            return original(shape, dtype, min, max, *args, **options)
        return min + (max - min) * _to_tensor(numbers, dtype)

    return uniform


def _normal(original: Callable) -> Callable:
    """Return a replacement of ``paddle.normal`` that takes its numbers from the draws in use."""

    def normal(mean: Any = 0.0, std: Any = 1.0, shape: Any = None, *args: Any, **options: Any) -> paddle.Tensor:
        shape = options.pop("size", shape)
        size = next((list(value.shape) for value in (mean, std) if isinstance(value, paddle.Tensor)), shape)
        numbers = None if _draws is None else _draws.replay_draw("normal", list(size), "normal numbers")
        if numbers is None:
            return original(mean, std, shape, *args, **options)
        return mean + std * _to_tensor(numbers, None)

    return normal


def _gaussian(original: Callable) -> Callable:
    """Return a replacement of the random function of ``paddle.distribution.Normal`` that uses the draws in use."""

    def gaussian(
        shape: Any, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = None, **options: Any
    ) -> paddle.Tensor:
        numbers = None if _draws is None else _draws.replay_draw("normal", list(shape), "normal numbers")
        if numbers is None:
            return original(shape, mean, std, seed, dtype, **options)
        return mean + std * _to_tensor(numbers, dtype)

    return gaussian


def _bernoulli(original: Callable) -> Callable:
    """Return a replacement of ``paddle.bernoulli`` that takes its numbers from the draws in use."""

    def bernoulli(x: paddle.Tensor, p: float | None = None, *args: Any, **options: Any) -> paddle.Tensor:
        numbers = None if _draws is None else _draws.replay_draw("uniform", x.shape, "a choice of two")
        if numbers is None:
            return original(x, p, *args, **options)
        return (paddle.to_tensor(numbers).astype(x.dtype) < (x if p is None else p)).astype(x.dtype)

    return bernoulli


def _multinomial(original: Callable) -> Callable:
    """Return a replacement of ``paddle.multinomial`` that takes its indices from the draws in use."""

    def multinomial(x: paddle.Tensor, num_samples: int = 1, *args: Any, **options: Any) -> paddle.Tensor:
        shape = [*x.shape[:-1], num_samples]
        numbers = None if _draws is None else _draws.replay_draw("multinomial", shape, "a choice of several")
        return original(x, num_samples, *args, **options) if numbers is None else paddle.to_tensor(numbers)

    return multinomial


def _whole_numbers(fractions: np.ndarray, low: int, high: int | None, dtype: Any) -> paddle.Tensor:
    """Return random integers in [low, high), or in [0, low) if ``high`` is None.

    Args:
        fractions: random numbers in [0, 1), which are scaled to the range and rounded down.
        low: smallest integer, or the end of the range if ``high`` is None.
        high: end of the range, which is excluded.
        dtype: dtype of the result.
    """
    least, end = (0, low) if high is None else (low, high)
    return paddle.to_tensor(np.floor(fractions.astype("float64") * (end - least)) + least).astype(dtype)


def _randint(original: Callable) -> Callable:
    """Return a replacement of ``paddle.randint`` that takes its numbers from the draws in use."""

    def randint(low: int = 0, high: int | None = None, shape: Any = (1,), dtype: Any = None, **options: Any) -> Any:
        numbers = None if _draws is None else _draws.replay_draw("uniform", list(shape), "whole numbers")
        if numbers is None:
            return original(low, high, shape, dtype, **options)
        return _whole_numbers(numbers, low, high, dtype or "int64")

    return randint


def _randint_like(original: Callable) -> Callable:
    """Return a replacement of ``paddle.randint_like`` that takes its numbers from the draws in use."""

    def randint_like(x: paddle.Tensor, low: int = 0, high: int | None = None, dtype: Any = None, **options: Any) -> Any:
        numbers = None if _draws is None else _draws.replay_draw("uniform", x.shape, "whole numbers")
        if numbers is None:
            return original(x, low, high, dtype, **options)
        return _whole_numbers(numbers, low, high, dtype or x.dtype)

    return randint_like


def _randperm(original: Callable) -> Callable:
    """Return a replacement of ``paddle.randperm`` that takes its permutation from the draws in use."""

    def randperm(n: int, dtype: Any = "int64", *args: Any, **options: Any) -> paddle.Tensor:
        numbers = None if _draws is None else _draws.replay_draw("uniform", [n], "an order")
        if numbers is None:
            return original(n, dtype, *args, **options)
        return paddle.to_tensor(numbers.argsort(kind="stable")).astype(dtype)

    return randperm


def _fill_from_draws(
    kind: str, description: str, names: Sequence[str], compute_values: Callable
) -> Callable[[Callable], Callable]:
    """Return a function that creates a replacement of a method that fills a tensor with random numbers.

    Args:
        kind: kind of the draws, such as `uniform`.
        description: description of the drawn numbers for the report.
        names: names of the method's arguments after the tensor.
        compute_values: function of the recorded numbers and these arguments that returns the new values.
    """

    def change_method(original: Callable) -> Callable:
        signature = inspect.signature(original)

        def fill(x: paddle.Tensor, *args: Any, **options: Any) -> paddle.Tensor:
            numbers = None if _draws is None else _draws.replay_draw(kind, x.shape, description)
            if numbers is None:
                return original(x, *args, **options)
            call = signature.bind(x, *args, **options)
            call.apply_defaults()
            result = compute_values(_to_tensor(numbers, None), *(call.arguments[name] for name in names))
            return paddle.assign(result.astype(x.dtype), x)

        return fill

    return change_method


#: Kind and description of the draws, argument names, and function of the drawn numbers, by method that fills a tensor.
FILL_METHODS: dict[str, tuple[str, str, tuple[str, ...], Callable]] = {
    "uniform_": ("uniform", "numbers between two others", ("min", "max"), lambda x, low, high: low + (high - low) * x),
    "normal_": ("normal", "normal numbers", ("mean", "std"), lambda x, mean, std: mean + std * x),
    "bernoulli_": ("uniform", "a choice of two", ("p",), lambda x, p: x < p),
    "exponential_": ("uniform", "exponential numbers", ("lam",), lambda x, rate: -paddle.log1p(-x) / rate),
}


def _embedding(original: Callable) -> Callable:
    """Return a replacement of Paddle's ``embedding`` with dense gradients inside :func:`use_dense_gradients`."""
    signature = inspect.signature(original)

    def embedding(*args: Any, **options: Any) -> paddle.Tensor:
        call = signature.bind(*args, **options)
        if _makes_dense:
            call.arguments["sparse"] = False
        return original(*call.args, **call.kwargs)

    return embedding


#: Whether the gradients of embeddings have all rows (:func:`use_dense_gradients`).
_makes_dense = False


@contextlib.contextmanager
def use_dense_gradients() -> Iterator[None]:
    """Let the gradients of embeddings have all rows inside the ``with`` block, even with ``sparse=True``.

    Paddle does not let a sparse gradient be replaced by a dense gradient.
    """
    global _makes_dense
    before, _makes_dense = _makes_dense, True
    try:
        yield
    finally:
        _makes_dense = before


def install() -> None:
    """Replace Paddle's random functions, dropout, ReLU and embedding, before a user's file is imported.

    Functions with a ``dtype`` argument are replaced, too, for :func:`keep_float64`.
    """
    replace_function(nn.functional, "dropout", _dropout)
    replace_function(nn.functional.common, "dropout", _dropout)
    replace_function(nn.functional, "relu", _relu)
    replace_function(nn.functional.activation, "relu", _relu)
    replace_function(nn.functional, "embedding", _embedding)
    replace_function(nn.functional, "rrelu", _rrelu)
    replace_function(nn.functional.activation, "rrelu", _rrelu)
    replace_function(nn.layer.rnn.RNNBase, "_cudnn_impl", _recurrent_network)
    replace_function(nn.functional, "gumbel_softmax", _gumbel_softmax)
    replace_function(nn.functional.activation, "gumbel_softmax", _gumbel_softmax)
    replace_function(paddle.tensor.random, "gaussian", _gaussian)
    replace_function(paddle, "randn", _replace_shaped("normal", "normal numbers"))
    replace_function(paddle, "standard_normal", _replace_shaped("normal", "normal numbers"))
    replace_function(paddle, "rand", _replace_shaped("uniform", "numbers between 0 and 1"))
    replace_function(paddle, "uniform", _uniform)
    replace_function(paddle, "normal", _normal)
    replace_function(paddle, "bernoulli", _bernoulli)
    replace_function(paddle, "rand_like", _replace_like("uniform", "numbers between 0 and 1"))
    replace_function(paddle, "randn_like", _replace_like("normal", "normal numbers"))
    replace_function(paddle, "randint", _randint)
    replace_function(paddle, "randint_like", _randint_like)
    replace_function(paddle, "randperm", _randperm)
    for name, (kind, description, arguments, compute_values) in FILL_METHODS.items():
        replace_function(paddle.Tensor, name, _fill_from_draws(kind, description, arguments, compute_values))
    for owner in (paddle, paddle.Tensor):
        replace_function(owner, "multinomial", _multinomial)
    _install_float64()


@contextlib.contextmanager
def use_dtype(dtype: str) -> Iterator[None]:
    """Set Paddle's default dtype inside the ``with`` block.

    A layer then creates tensors such as masks and position tables in this dtype.
    """
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        yield
    finally:
        paddle.set_default_dtype(before)


#: Lines of the port, `file:line`, that would have cast float64 to fewer digits.
leaks: list[str] = []
#: Names of dtypes with fewer digits than float64.
NARROW_DTYPES = ("float32", "float16", "bfloat16")
#: Names of functions that only describe their ``dtype`` argument.
DESCRIBING_FUNCTIONS = ("finfo", "iinfo")
#: Whether a port's code computes in float64 (:func:`keep_float64`).
_keeps_float64 = False


@contextlib.contextmanager
def keep_float64() -> Iterator[None]:
    """Let a port's code compute in float64 inside the ``with`` block, even if it asks for fewer digits.

    This holds for casts, new tensors and a softmax's ``dtype``, as for the reference. So the float64 run compares only
    the function. The lines that cast float64 to fewer digits are recorded in :data:`leaks`.
    """
    global _keeps_float64
    before, _keeps_float64 = _keeps_float64, True
    try:
        yield
    finally:
        _keeps_float64 = before


def _widen_dtype(original: Callable) -> Callable:
    """Return a replacement of a function with a ``dtype`` argument, which uses float64 inside :func:`keep_float64`."""
    signature = inspect.signature(original)

    def call_widened(*args: Any, **options: Any) -> Any:
        if not _keeps_float64:
            return original(*args, **options)
        try:
            call = signature.bind(*args, **options)
        except TypeError:  # Paddle has a second signature of some functions
            return original(*args, **({**options, "dtype": "float64"} if _is_narrow(options.get("dtype")) else options))
        if not _is_narrow(call.arguments.get("dtype")):
            return original(*args, **options)
        call.arguments["dtype"] = "float64"
        first_argument = next(iter(call.arguments.values()))
        if isinstance(first_argument, paddle.Tensor) and first_argument.dtype == paddle.float64:
            line = calling_line(short=True)
            if line and line not in leaks:
                leaks.append(line)
        return original(*call.args, **call.kwargs)

    call_widened.paddle_original = getattr(original, "paddle_original", original)  # type: ignore[attr-defined]
    return call_widened


def _is_narrow(dtype: Any) -> bool:
    """Return whether a dtype, or its name, has fewer digits than float64."""
    return str(dtype).rpartition(".")[2] in NARROW_DTYPES


def _widen_stored(original: Callable) -> Callable:
    """Return a replacement of a method that stores a value in a tensor, such as ``set_value``.

    Inside :func:`keep_float64`, it casts a float32 value to float64 if the tensor has float64. Ports compute some
    tables in float32 with NumPy.
    """

    def store(tensor: paddle.Tensor, value: Any, *args: Any, **options: Any) -> Any:
        if _keeps_float64 and _is_narrow(getattr(value, "dtype", "")) and tensor.dtype == paddle.float64:
            value = value.astype("float64")
        return original(tensor, value, *args, **options)

    return store


def _install_float64() -> None:
    """Replace Paddle's functions that have a ``dtype`` argument or store values, for :func:`keep_float64`."""
    for name in ("set_value", "copy_"):
        replace_function(paddle.Tensor, name, _widen_stored)
    for owner in (paddle, nn.functional, paddle.Tensor):
        for name, function in list(vars(owner).items()):
            is_public = inspect.isfunction(function) and not name.startswith("_")
            if is_public and name not in DESCRIBING_FUNCTIONS and "dtype" in inspect.signature(function).parameters:
                setattr(owner, name, _widen_dtype(function))


def calling_line(short: bool = False) -> str:
    """Return the line of the port's code that called the gate or Paddle, `file:line`; "" if there is none.

    Args:
        short: whether the result has only the name of the file instead of its path.
    """
    frame = calling_frame()
    if frame is None:
        return ""
    file = Path(frame.f_code.co_filename)
    return f"{file.name if short else display_path(file)}:{frame.f_lineno}"


def calling_frame() -> FrameType | None:
    """Return the innermost frame of the port's code on the stack; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    return frame
