"""Reversible residual layers: activations are recomputed from the outputs, so memory does not grow with depth.

Gomez et al. 2017, "The Reversible Residual Network"; Kitaev et al. 2020, section 3. A layer maps two residual streams
(x1, x2) to y1 = x1 + attention(x2), y2 = x2 + feed_forward(y1); the inverse is x2 = y2 - feed_forward(y1), x1 = y1 -
attention(x2). In floating point the inverse loses what the additions rounded away. If a stream has grown to 10^6
times its first size, its first layer's input comes back with an error larger than itself, and so do the gradients.
So the streams here carry twice the layers' precision, in which the inverse is exact: only additions and subtractions
pay.
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
from models.operations.precision import carried
from models.operations.randomness import Replay
from models.operations.trace import at


@dataclass
class PlainStream:
    """A residual stream in the layers' own precision."""

    value: Tensor

    def plus(self, update: Tensor) -> PlainStream:
        return PlainStream(self.value + update)

    def minus(self, update: Tensor) -> PlainStream:
        return PlainStream(self.value - update)

    def first(self, count: int) -> PlainStream:
        return PlainStream(self.value[:, :count])


class GridStream:
    """A stream of float32 (or narrower) layers with exact sums: float64 numbers on a grid of fixed spacing.

    Multiples of one spacing add and subtract without rounding while they stay below 2^53 spacings (exact reversible
    arithmetic; Maclaurin et al. 2015, section 3.1). The spacing is 2^-28 of the stream's first size: finer than float32
    rounds there, with room for growth by 2^24. Beyond that the sums round, as plain float64 would.
    """

    FINENESS = 28

    def __init__(self, exact: Tensor, rounder: float, dtype: paddle.dtype, value: Tensor | None = None) -> None:
        self.exact = exact
        self.rounder = rounder
        self.dtype = dtype
        self._value = value

    @classmethod
    def begin(cls, x: Tensor) -> GridStream:
        _, exponent = math.frexp(float(x.abs().max()))
        spacing = math.ldexp(1.0, max(exponent, -500) - cls.FINENESS)
        rounder = 1.5 * 2.0**52 * spacing  # adding and subtracting it rounds to a multiple of the spacing
        return cls((x.astype("float64") + rounder) - rounder, rounder, x.dtype)

    @property
    def value(self) -> Tensor:
        value, self._value = self._value, None  # handed out once: it need not outlive the layer that reads it
        return self.exact.astype(self.dtype) if value is None else value

    def _on_grid(self, update: Tensor) -> Tensor:
        return (update.astype("float64") + self.rounder) - self.rounder

    def _plus(self, update: Tensor, sign: float) -> GridStream:
        if compiled.suits(update, loop="streams"):
            exact, value = compiled.add_on_grid(self.exact, update, self.rounder, sign)
            return GridStream(exact, self.rounder, self.dtype, value)
        return GridStream(self.exact + sign * self._on_grid(update), self.rounder, self.dtype)

    def plus(self, update: Tensor) -> GridStream:
        return self._plus(update, 1.0)

    def minus(self, update: Tensor) -> GridStream:
        return self._plus(update, -1.0)

    def first(self, count: int) -> GridStream:
        return GridStream(self.exact[:, :count], self.rounder, self.dtype)


@dataclass
class PairStream:
    """A stream of float64 layers, kept as the unevaluated sum value + rest (Dekker 1971, Knuth's TwoSum)."""

    value: Tensor
    rest: Tensor

    def plus(self, update: Tensor) -> PairStream:
        total = self.value + update
        seen = total - self.value
        lost = (self.value - (total - seen)) + (update - seen)
        rest = lost + self.rest
        value = total + rest
        return PairStream(value, rest - (value - total))

    def minus(self, update: Tensor) -> PairStream:
        return self.plus(-update)

    def first(self, count: int) -> PairStream:
        return PairStream(self.value[:, :count], self.rest[:, :count])


@dataclass
class DoubleStream:
    """A stream in float64, for a static graph, which cannot see the numbers that set a grid."""

    exact: Tensor
    dtype: paddle.dtype

    @property
    def value(self) -> Tensor:
        return self.exact.astype(self.dtype)

    def plus(self, update: Tensor) -> DoubleStream:
        return DoubleStream(self.exact + update.astype("float64"), self.dtype)

    def first(self, count: int) -> DoubleStream:
        return DoubleStream(self.exact[:, :count], self.dtype)

    def minus(self, update: Tensor) -> DoubleStream:
        return DoubleStream(self.exact - update.astype("float64"), self.dtype)


#: ``plus`` and ``minus`` an update; its ``first`` positions.
Stream = PlainStream | GridStream | PairStream | DoubleStream


def open_stream(x: Tensor, residual: str) -> Stream:
    """Start a stream with ``x``; ``residual`` is ``wide`` or ``plain`` (see ReformerConfig)."""
    if residual == "plain":
        return PlainStream(x)
    if not paddle.in_dynamic_mode():
        return DoubleStream(x.astype("float64"), x.dtype)
    if x.dtype == paddle.float64:
        return PairStream(x, paddle.zeros_like(x))
    return GridStream.begin(x)


class _Opened(PyLayer):
    """The value of a new stream, with the gradient of what it began with."""

    @staticmethod
    def forward(ctx, x, stream):
        return stream.value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class _Sum(PyLayer):
    """The value of a stream after an update, with the gradients of a plain sum; the stream is added to ``made``."""

    @staticmethod
    def forward(ctx, value, update, stream, made):
        ctx.frozen = value.stop_gradient, update.stop_gradient  # an adapter's first layers
        made.append(stream.plus(update.detach()))
        return made[0].value

    @staticmethod
    def backward(ctx, grad):
        grads = grad, grad.clone()  # Paddle adds further gradients in place
        return tuple(None if frozen else one for one, frozen in zip(grads, ctx.frozen, strict=True))


class TracedStream:
    """A stream for autograd: its ``value`` carries the graph, its sums are those of ``inner``."""

    def __init__(self, value: Tensor, inner: Stream) -> None:
        self.value = value
        self.inner = inner

    def plus(self, update: Tensor) -> TracedStream:
        made: list[Stream] = []
        value = at("stream", _Sum.apply(self.value, update, self.inner, made))
        return TracedStream(value, made[0])

    def first(self, count: int) -> TracedStream:
        part = copy.copy(self)
        part.value, part.inner = self.value[:, :count], self.inner.first(count)
        return part


def run_traced(
    layers: Iterable[nn.Layer], x: Tensor, attention_mask: Tensor | None, residual: str, read: int | None = None
) -> tuple[Tensor, Tensor]:
    """Run all layers under plain autograd, storing every activation: the slow oracle of :func:`run_reversible`, also
    used to run without gradients.

    Args:
        read: return only this many first positions of the last layer's output; None: all.

    Returns:
        The two streams' values, each (B, T, hidden), or their first ``read`` positions.
    """
    stream = open_stream(x.detach(), residual)
    followed = paddle.in_dynamic_mode() and paddle.is_grad_enabled()
    attention_stream = hidden_stream = TracedStream(_Opened.apply(x, stream), stream) if followed else stream
    *layers, last = layers
    for layer in layers:
        attention_stream, hidden_stream, _ = layer(attention_stream, hidden_stream, attention_mask)
    attention_stream, hidden_stream, _ = last(attention_stream, hidden_stream, attention_mask, read)
    return attention_stream.value, hidden_stream.value


def run_reversible(
    layers: Iterable[nn.Layer], x: Tensor, attention_mask: Tensor | None, residual: str
) -> tuple[Tensor, Tensor]:
    """Run all layers, recomputing in the backward. Return the two streams' values, each (B, T, hidden)."""
    if x.stop_gradient:  # frozen embeddings: the layers' parameters still need gradients
        x = x.detach()
        x.stop_gradient = False
    return _Reversible.apply(x, _Run(layers, attention_mask, residual))


class _Reversible(PyLayer):
    @staticmethod
    def forward(ctx, x, run):
        ctx.run = run
        return run.forward(x)

    @staticmethod
    def backward(ctx, grad_attention, grad_hidden):
        return ctx.run.backward(grad_attention, grad_hidden)


@dataclass
class LayerRecord:
    """What recomputing a layer needs to repeat the first result: generator states and buckets (B, H, R*T)."""

    attention: Replay
    feed_forward: Replay
    buckets: Tensor | None

    def compact(self) -> LayerRecord:
        """Store the buckets in 16 bits if they fit: they are all that grows with depth."""
        if self.buckets is None or int(self.buckets.max()) >= 2**15:
            return self
        return LayerRecord(self.attention, self.feed_forward, self.buckets.astype("int16"))

    def wide_buckets(self) -> Tensor | None:
        """Return the attention's int64 buckets; None in a local layer."""
        return None if self.buckets is None else self.buckets.astype("int64")


class _Run:
    """One training forward through all layers; it keeps only the outputs and how to recompute the rest."""

    def __init__(self, layers: Iterable[nn.Layer], attention_mask: Tensor | None, residual: str) -> None:
        self.layers: list[Any] = list(layers)
        self.attention_mask = attention_mask
        self.residual = residual
        self.records: list[LayerRecord] = []
        self._compute = carried(lambda block, x: block(x))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with paddle.no_grad():
            attention_stream = hidden_stream = open_stream(x.detach(), self.residual)
            for layer in self.layers:
                attention_stream, hidden_stream, record = layer(attention_stream, hidden_stream, self.attention_mask)
                self.records.append(record.compact())
            self.outputs = (attention_stream, hidden_stream)
            return attention_stream.value, hidden_stream.value

    def backward(self, grad_attention: Tensor, grad_hidden: Tensor) -> Tensor:
        attention_stream, hidden_stream = self.outputs
        del self.outputs
        for layer in reversed(self.layers):
            record = self.records.pop()
            update, grad = self._again(record.feed_forward, layer.feed_forward, attention_stream.value, grad_hidden)
            with paddle.no_grad():
                hidden_stream = hidden_stream.minus(update)
                grad_attention = grad_attention + grad

            def attention(hidden_states, layer=layer, record=record):
                return layer.attention(hidden_states, self.attention_mask, record.wide_buckets())[0]

            update, grad = self._again(record.attention, attention, hidden_stream.value, grad_attention)
            with paddle.no_grad():
                attention_stream = attention_stream.minus(update)
                grad_hidden = grad_hidden + grad
        return grad_attention + grad_hidden

    def _again(
        self, replay: Replay, block: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Recompute ``block(x)`` with its recorded draws, and its gradients; parameters' accumulate in place. Returns
        the block's output, without graph, and the gradient of ``x``."""
        x = x.detach()
        x.stop_gradient = False
        with paddle.enable_grad(), replay:
            output = self._compute(block, x)
        paddle.autograd.backward([output], [grad.astype(output.dtype)])
        return output.detach(), x.grad.astype(grad.dtype)
