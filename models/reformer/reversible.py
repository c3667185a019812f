"""Reversible residual layers: activations are recomputed from the outputs, so memory does not grow with depth.

Gomez et al. 2017, "The Reversible Residual Network"; Kitaev et al. 2020, section 3. A layer maps two residual streams
(x1, x2) to y1 = x1 + attention(x2), y2 = x2 + feed_forward(y1). The inverse is x2 = y2 - feed_forward(y1), x1 = y1 -
attention(x2). In floating point, the inverse loses the digits that the additions rounded away. If a stream has grown to
10^6 times its first size, the recovered input of the first layer has an error larger than the input, and so have the
gradients. The streams therefore have twice the precision of the layers, and their inverse is exact. Only additions
and subtractions become slower.

Letters in the shapes: B batch size, T positions, H heads, R hash rounds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from models.operations import compiled
from models.operations.precision import keep_precision
from models.operations.randomness import Replay
from models.operations.trace import at


@dataclass
class PlainStream:
    """A residual stream in the precision of the layers.

    Attributes:
        value: values of the stream, (B, T, hidden).
    """

    value: Tensor

    def plus(self, update: Tensor) -> PlainStream:
        """Return the stream after the update is added."""
        return PlainStream(self.value + update)

    def minus(self, update: Tensor) -> PlainStream:
        """Return the stream after the update is subtracted."""
        return PlainStream(self.value - update)

    def first(self, count: int) -> PlainStream:
        """Return the stream of the first ``count`` positions."""
        return PlainStream(self.value[:, :count])


class GridStream:
    """A stream of float32 or narrower layers with exact sums, in float64 numbers on a grid of fixed spacing.

    Multiples of the spacing are added and subtracted without rounding while they are below 2^53 spacings (exact
    reversible arithmetic; Maclaurin et al. 2015, section 3.1). The spacing is 2^-28 of the stream's first size. This is
    finer than float32 rounds numbers of this size, and the stream may grow by 2^24. Beyond that, sums are rounded as in
    plain float64.

    Args:
        exact: values of the stream on the grid, float64 (B, T, hidden).
        rounder: number that rounds to the grid if it is added and subtracted.
        dtype: dtype of the layers.
        value: values of the stream in the dtype of the layers, (B, T, hidden); None computes them from ``exact``.
    """

    FINENESS = 28

    def __init__(self, exact: Tensor, rounder: float, dtype: paddle.dtype, value: Tensor | None = None) -> None:
        self.exact = exact
        self.rounder = rounder
        self.dtype = dtype
        self._value = value

    @classmethod
    def from_tensor(cls, x: Tensor) -> GridStream:
        """Return a stream that starts with ``x``, (B, T, hidden), whose largest number determines the grid."""
        _, exponent = math.frexp(float(x.abs().max()))
        spacing = math.ldexp(1.0, max(exponent, -500) - cls.FINENESS)
        rounder = 1.5 * 2.0**52 * spacing  # adding and subtracting it rounds to a multiple of the spacing
        return cls((x.astype("float64") + rounder) - rounder, rounder, x.dtype)

    @property
    def value(self) -> Tensor:
        """Value of the stream in the model's dtype."""
        value, self._value = self._value, None  # returned once, so that it is freed after the layer that reads it
        return self.exact.astype(self.dtype) if value is None else value

    def _round_to_grid(self, update: Tensor) -> Tensor:
        """Return the update in float64, rounded to a multiple of the grid's spacing."""
        return (update.astype("float64") + self.rounder) - self.rounder

    def _add(self, update: Tensor, sign: float) -> GridStream:
        """Return the stream after the update is added or, with sign -1, subtracted."""
        if compiled.supports_compiled(update, loop="streams"):
            exact, value = compiled.add_on_grid(self.exact, update, self.rounder, sign)
            return GridStream(exact, self.rounder, self.dtype, value)
        return GridStream(self.exact + sign * self._round_to_grid(update), self.rounder, self.dtype)

    def plus(self, update: Tensor) -> GridStream:
        """Return the stream after the rounded update is added."""
        return self._add(update, 1.0)

    def minus(self, update: Tensor) -> GridStream:
        """Return the stream after the rounded update is subtracted."""
        return self._add(update, -1.0)

    def first(self, count: int) -> GridStream:
        """Return the stream of the first ``count`` positions."""
        return GridStream(self.exact[:, :count], self.rounder, self.dtype)


@dataclass
class PairStream:
    """A stream of float64 layers, stored as the unevaluated sum value + rest (Dekker 1971, Knuth's TwoSum).

    Attributes:
        value: values of the stream rounded to float64, (B, T, hidden).
        rest: rounding errors of the values, (B, T, hidden).
    """

    value: Tensor
    rest: Tensor

    def plus(self, update: Tensor) -> PairStream:
        """Return the stream after the update is added, with the rounding error kept in ``rest``."""
        total = self.value + update
        rounded_update = total - self.value
        error = (self.value - (total - rounded_update)) + (update - rounded_update)
        rest = error + self.rest
        value = total + rest
        return PairStream(value, rest - (value - total))

    def minus(self, update: Tensor) -> PairStream:
        """Return the stream after the update is subtracted."""
        return self.plus(-update)

    def first(self, count: int) -> PairStream:
        """Return the stream of the first ``count`` positions."""
        return PairStream(self.value[:, :count], self.rest[:, :count])


@dataclass
class DoubleStream:
    """A stream in float64 for a static graph, which does not know the numbers that would determine a grid.

    Attributes:
        exact: values of the stream, float64 (B, T, hidden).
        dtype: dtype of the layers.
    """

    exact: Tensor
    dtype: paddle.dtype

    @property
    def value(self) -> Tensor:
        """Value of the stream in the model's dtype."""
        return self.exact.astype(self.dtype)

    def plus(self, update: Tensor) -> DoubleStream:
        """Return the stream after the update is added in float64."""
        return DoubleStream(self.exact + update.astype("float64"), self.dtype)

    def first(self, count: int) -> DoubleStream:
        """Return the stream of the first ``count`` positions."""
        return DoubleStream(self.exact[:, :count], self.dtype)

    def minus(self, update: Tensor) -> DoubleStream:
        """Return the stream after the update is subtracted in float64."""
        return DoubleStream(self.exact - update.astype("float64"), self.dtype)


#: A residual stream, with ``plus`` and ``minus`` for updates and ``first`` for its first positions.
Stream = PlainStream | GridStream | PairStream | DoubleStream


def open_stream(x: Tensor, residual: str) -> Stream:
    """Return a new residual stream.

    Args:
        x: first values of the stream, (B, T, hidden).
        residual: precision of the stream, ``wide`` or ``plain`` (see ReformerConfig).
    """
    if residual == "plain":
        return PlainStream(x)
    if not paddle.in_dynamic_mode():
        return DoubleStream(x.astype("float64"), x.dtype)
    if x.dtype == paddle.float64:
        return PairStream(x, paddle.zeros_like(x))
    return GridStream.from_tensor(x)


class _NewStreamValue(PyLayer):
    """The value of a new stream, with the gradient passed on to the tensor ``x`` that starts it."""

    @staticmethod
    def forward(ctx, x, stream):
        """Return a copy of the stream's value that autograd treats as computed from x.

        Args:
            ctx: autograd's context of this call.
            x: tensor that starts the stream, (B, T, hidden), which gets the gradient.
            stream: stream that was started from ``x``.
        """
        return stream.value.clone()

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of x, which equals the gradient of the output."""
        return grad


class _Sum(PyLayer):
    """The value of a stream after an update, with the gradients of a plain sum.

    The stream after the update is appended to the list ``new_streams``.
    """

    @staticmethod
    def forward(ctx, value, update, stream, new_streams):
        """Add an update to a stream, append the new stream to ``new_streams``, and return its value.

        Args:
            ctx: context that keeps for the backward which inputs need a gradient.
            value: value of the stream, for autograd.
            update: tensor to add.
            stream: stream that is added to.
            new_streams: empty list for the new stream, since only tensors may be returned.
        """
        ctx.is_frozen = value.stop_gradient, update.stop_gradient  # true in the first layers of an adapted model
        new_streams.append(stream.plus(update.detach()))
        return new_streams[0].value

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of the value and the update; None for one that needs no gradient."""
        grads = grad, grad.clone()  # Paddle adds further gradients in place
        return tuple(None if is_frozen else grad for grad, is_frozen in zip(grads, ctx.is_frozen, strict=True))


class TracedStream:
    """A stream for autograd, whose ``value`` has the graph and whose sums are computed by ``inner``.

    Args:
        value: values of the stream with their graph, (B, T, hidden).
        inner: stream that computes the sums.
    """

    def __init__(self, value: Tensor, inner: Stream) -> None:
        self.value = value
        self.inner = inner

    def plus(self, update: Tensor) -> TracedStream:
        """Return the stream after the update is added, with autograd through the sum."""
        new_streams: list[Stream] = []
        value = at("stream", _Sum.apply(self.value, update, self.inner, new_streams))
        return TracedStream(value, new_streams[0])

    def first(self, count: int) -> TracedStream:
        """Return the stream of the first ``count`` positions."""
        part = copy.copy(self)
        part.value, part.inner = self.value[:, :count], self.inner.first(count)
        return part


def run_traced(
    layers: Iterable[nn.Layer],
    x: Tensor,
    attention_mask: Tensor | None,
    residual: str,
    num_positions: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run all layers under plain autograd, which stores every activation, or without gradients.

    The results verify :func:`run_reversible`.

    Args:
        layers: layers of the encoder.
        x: input of both streams, (B, T, hidden).
        attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
        residual: precision of the streams, ``wide`` or ``plain``.
        num_positions: number of first positions that the last layer returns; None for all.

    Returns:
        The values of the two streams, (B, T or num_positions, hidden) each.
    """
    stream = open_stream(x.detach(), residual)
    uses_autograd = paddle.in_dynamic_mode() and paddle.is_grad_enabled()
    traced_stream = TracedStream(_NewStreamValue.apply(x, stream), stream) if uses_autograd else stream
    attention_stream = hidden_stream = traced_stream
    *layers, last = layers
    for layer in layers:
        attention_stream, hidden_stream, _ = layer(attention_stream, hidden_stream, attention_mask)
    attention_stream, hidden_stream, _ = last(attention_stream, hidden_stream, attention_mask, num_positions)
    return attention_stream.value, hidden_stream.value


def run_reversible(
    layers: Iterable[nn.Layer], x: Tensor, attention_mask: Tensor | None, residual: str
) -> tuple[Tensor, Tensor]:
    """Run all layers in training, with a backward that computes them again instead of storing activations.

    Args:
        layers: layers of the encoder.
        x: input of both streams, (B, T, hidden).
        attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
        residual: precision of the streams, ``wide`` or ``plain``.

    Returns:
        The values of the two streams, (B, T, hidden) each.
    """
    if x.stop_gradient:  # with frozen embeddings, the parameters of the layers still need gradients
        x = x.detach()
        x.stop_gradient = False
    return _Reversible.apply(x, _ReversibleRun(layers, attention_mask, residual))


class _Reversible(PyLayer):
    """Connection of a :class:`_ReversibleRun` to autograd."""

    @staticmethod
    def forward(ctx, x, run):
        """Return both streams after all layers.

        Args:
            ctx: context that keeps the run for the backward.
            x: input of the first layer.
            run: object that computes the forward and the backward of the layers.
        """
        ctx.run = run
        return run.forward(x)

    @staticmethod
    def backward(ctx, grad_attention, grad_hidden):
        """Return the gradient of the layers' input.

        Args:
            ctx: context of the forward.
            grad_attention: gradient of the attention stream after the last layer.
            grad_hidden: gradient of the hidden stream after the last layer.
        """
        return ctx.run.backward(grad_attention, grad_hidden)


@dataclass
class LayerRecord:
    """Random draws and LSH buckets that let a layer compute the same result again.

    Attributes:
        attention: random draws of the attention.
        feed_forward: random draws of the feed-forward layer.
        buckets: buckets of the attention, (B, H, R*T); None in a local layer.
    """

    attention: Replay
    feed_forward: Replay
    buckets: Tensor | None

    def compact(self) -> LayerRecord:
        """Return the record with buckets in 16 bits if they fit, since only they take memory for each layer."""
        if self.buckets is None or int(self.buckets.max()) >= 2**15:
            return self
        return LayerRecord(self.attention, self.feed_forward, self.buckets.astype("int16"))

    def wide_buckets(self) -> Tensor | None:
        """Return the buckets in int64, (B, H, R*T); None in a local layer."""
        return None if self.buckets is None else self.buckets.astype("int64")


class _ReversibleRun:
    """One forward and backward of all layers in training, which stores only the outputs and a record of each layer.

    Args:
        layers: layers of the encoder.
        attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
        residual: precision of the streams, ``wide`` or ``plain``.
    """

    def __init__(self, layers: Iterable[nn.Layer], attention_mask: Tensor | None, residual: str) -> None:
        self.layers: list[Any] = list(layers)
        self.attention_mask = attention_mask
        self.residual = residual
        self.records: list[LayerRecord] = []
        self._compute = keep_precision(lambda block, x: block(x))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of both streams after all layers, (B, T, hidden) each, for an input of the same shape."""
        with paddle.no_grad():
            attention_stream = hidden_stream = open_stream(x.detach(), self.residual)
            for layer in self.layers:
                attention_stream, hidden_stream, record = layer(attention_stream, hidden_stream, self.attention_mask)
                self.records.append(record.compact())
            self.outputs = (attention_stream, hidden_stream)
            return attention_stream.value, hidden_stream.value

    def backward(self, grad_attention: Tensor, grad_hidden: Tensor) -> Tensor:
        """Return the gradient of the input, (B, T, hidden), and accumulate the gradients of the parameters.

        Args:
            grad_attention: gradient of the attention stream after all layers, (B, T, hidden).
            grad_hidden: gradient of the hidden stream after all layers, (B, T, hidden).
        """
        attention_stream, hidden_stream = self.outputs
        del self.outputs
        for layer in reversed(self.layers):
            record = self.records.pop()
            update, grad = self._recompute(record.feed_forward, layer.feed_forward, attention_stream.value, grad_hidden)
            with paddle.no_grad():
                hidden_stream = hidden_stream.minus(update)
                grad_attention = grad_attention + grad

            def attention(hidden_states, layer=layer, record=record):
                return layer.attention(hidden_states, self.attention_mask, record.wide_buckets())[0]

            update, grad = self._recompute(record.attention, attention, hidden_stream.value, grad_attention)
            with paddle.no_grad():
                attention_stream = attention_stream.minus(update)
                grad_hidden = grad_hidden + grad
        return grad_attention + grad_hidden

    def _recompute(
        self, replay: Replay, block: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute a block again with its recorded draws, and accumulate the gradients of its parameters.

        Args:
            replay: recorded random draws.
            block: attention or feed-forward layer.
            x: input of the block, (B, T, hidden).
            grad: gradient of the block's output, (B, T, hidden).

        Returns:
            The output of the block without a graph, and the gradient of its input.
        """
        x = x.detach()
        x.stop_gradient = False
        with paddle.enable_grad(), replay:
            output = self._compute(block, x)
        paddle.autograd.backward([output], [grad.astype(output.dtype)])
        return output.detach(), x.grad.astype(grad.dtype)
