"""CTRL's logits after each further token of texts: one position at a time, with the earlier keys and values.

On a CPU a small model spends a token's time not on arithmetic but on overhead: layer calls, hook look-ups, unused
gradients. So the layers of :mod:`.modeling` are written here again for one position in evaluation. For a few texts in
float32 a token is one compiled loop, which reads each weight once: 128 tokens of 4 layers of width 320 take 0.18 s in
place of 0.37 (two cores of an Intel Xeon). The gate's ``decoding/`` compares all versions with the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor

from models.operations import compiled
from models.operations.ops import layer_norm
from models.operations.precision import is_lowered

if TYPE_CHECKING:
    from models.ctrl.layers import Cache, EncoderLayer
    from models.port.base import Port


#: Texts up to which a compiled layer is faster than products by Paddle (measured).
FEW = 4


class _Map:
    """x W + b in evaluation, of a :class:`models.operations.ops.Linear`."""

    def __init__(self, linear: Any) -> None:
        self.weight, self.bias = linear.weight, linear.bias

    def __call__(self, x: Tensor) -> Tensor:
        """(B, in) -> (B, out)."""
        return paddle.matmul(x, self.weight) + self.bias


class _Norm:
    """A :class:`models.operations.ops.LayerNorm` in evaluation."""

    def __init__(self, norm: Any) -> None:
        self.weight, self.bias, self.epsilon = norm.weight, norm.bias, norm._epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """(B, width), of the same shape."""
        if x.dtype == paddle.float64:  # Paddle rounds epsilon
            return layer_norm(x, self.weight, self.bias, self.epsilon)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.epsilon)


class _Scores:
    """Scores for every token of the vocabulary: x W^T + b."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """(B, width) -> (B, vocabulary)."""
        return paddle.matmul(x, self.weight, transpose_y=True) + self.bias


@dataclass(frozen=True)
class _Layer:
    """An :class:`.modeling.EncoderLayer` in evaluation, for one position."""

    heads: int
    norms: tuple[_Norm, _Norm]
    projections: tuple[_Map, _Map, _Map]
    dense: _Map
    inner: _Map
    outer: _Map

    @classmethod
    def of(cls, layer: EncoderLayer) -> _Layer:
        attention, (inner, _, outer) = layer.multi_head_attention, layer.ffn
        return cls(
            heads=attention.n_head,
            norms=(_Norm(layer.layernorm1), _Norm(layer.layernorm2)),
            projections=(_Map(attention.Wq), _Map(attention.Wk), _Map(attention.Wv)),
            dense=_Map(attention.dense),
            inner=_Map(inner),
            outer=_Map(outer),
        )

    @cached_property
    def parameters(self) -> list[Tensor]:
        """In the order of :func:`models.operations.compiled.decoder_step`."""
        first, second = self.norms
        parts = (first, *self.projections, self.dense, second, self.inner, self.outer)
        return [tensor.contiguous() for part in parts for tensor in (part.weight, part.bias)]

    def __call__(self, hidden_states: Tensor, bias: Tensor | None, past: Cache) -> tuple[Tensor, Cache]:
        """(B, n_embd) -> (B, n_embd), and the layer's keys and values."""
        attended, present = self.attend(self.norms[0](hidden_states), bias, past)
        hidden_states = hidden_states + attended
        return hidden_states + self.outer(F.relu(self.inner(self.norms[1](hidden_states)))), present

    def attend(self, x: Tensor, bias: Tensor | None, past: Cache) -> tuple[Tensor, Cache]:
        """As :meth:`__call__`, of the attention alone; ``bias`` is added to the scores (B, heads, 1, T)."""
        depth = x.shape[1] // self.heads
        query, key, value = (project(x).reshape([-1, self.heads, 1, depth]) for project in self.projections)
        key, value = paddle.concat([past[0], key], axis=2), paddle.concat([past[1], value], axis=2)
        scores = paddle.matmul(query, key, transpose_y=True) / math.sqrt(depth)
        probabilities = F.softmax(scores if bias is None else scores + bias)
        return self.dense(paddle.matmul(probabilities, value).reshape(x.shape)), (key, value)


class Continuation:
    """Continues texts from the keys and values that a model kept.

    Args:
        model: in evaluation mode.
        past: of each layer, keys and values (B, heads, T, depth).
        attention_mask: (B, T), 0 for padding; all 1 if absent.
    """

    def __init__(
        self,
        model: Port,
        past: Sequence[Cache],
        attention_mask: Tensor | None,
        bias_of: Callable[[int, int, Tensor, str], Tensor],
    ) -> None:
        self.model = model
        self._held = list(past)  # with room for later positions, perhaps
        # For the compiled loop; made anew where `_held` is another list.
        self._prepared: tuple[list[Cache], compiled.DecoderLayers] = [], compiled.DecoderLayers()
        self._length = past[0][0].shape[2]
        self.attention_mask = attention_mask
        self._bias_of = bias_of

    @property
    def texts(self) -> int:
        """Number of texts, B."""
        return self._held[0][0].shape[0]

    @property
    def past(self) -> list[Cache]:
        """Of each layer, keys and values (B, heads, T, depth)."""
        if self._held[0][0].shape[2] == self._length:
            return self._held
        return [(keys[:, :, : self._length], values[:, :, : self._length]) for keys, values in self._held]

    def choose(self, rows: Tensor) -> None:
        """Continue only these texts, int64 (B,); one may occur more than once."""
        self._held = [(paddle.index_select(k, rows), paddle.index_select(v, rows)) for k, v in self._held]
        if self.attention_mask is not None:
            self.attention_mask = paddle.index_select(self.attention_mask, rows)

    def __call__(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return logits (B, vocabulary) after one more token (B, 1) per text. ``kept`` (B, 1) is 0 for padding; all 1
        if absent. Raises ValueError beyond ``n_positions``."""
        position = self._length
        self._keep(tokens, kept, position)
        if not _is_plain(self.model):
            output = self.model(tokens, self.attention_mask, past_key_values=self.past, use_cache=True)
            self._held, self._length = list(output.past_key_values), position + 1
            return output.logits[:, -1]
        body = self.model.transformer
        if position >= body.config.n_positions:
            raise ValueError(f"{position + 1} positions are more than n_positions {body.config.n_positions}")
        bias = None
        if self.attention_mask is not None:
            bias = self._bias_of(position, 1, self.attention_mask, str(body.w.weight.dtype).rsplit(".", 1)[-1])
        few = self.texts <= FEW and tokens.dtype == paddle.int64 and compiled.suits(body.w.weight)
        logits = self._compiled(tokens, bias, position) if few else self._composed(tokens, bias, position)
        self._length = position + 1
        return logits

    def _composed(self, tokens: Tensor, bias: Tensor | None, position: int) -> Tensor:
        """By Paddle's operations."""
        places = paddle.full_like(tokens, position)
        hidden_states = self.model.transformer.embed(tokens, places).squeeze(1)  # (B, n_embd)
        held = []
        for layer, past in zip(self._layers, self.past, strict=True):
            hidden_states, present = layer(hidden_states, bias, past)
            held.append(present)
        self._held = held
        return self._scores(self._last_norm(hidden_states))

    def _compiled(self, tokens: Tensor, bias: Tensor | None, position: int) -> Tensor:
        """By one loop, which keeps keys and values in place, with room for later ones."""
        texts, heads, room, depth = self._held[0][0].shape
        if room == position:
            more = paddle.empty([texts, heads, compiled.ROOM, depth], "float32")
            self._held = [(paddle.concat([k, more], axis=2), paddle.concat([v, more], axis=2)) for k, v in self._held]
        if self._prepared[0] is not self._held:
            layers = [(*held, *layer.parameters) for held, layer in zip(self._held, self._layers, strict=True)]
            self._prepared = self._held, compiled.DecoderLayers(layers)
        body, last = self.model.transformer, self._last_norm
        return compiled.decoder_step(
            tokens,
            body.w.weight,
            body.table_in(paddle.float32),
            self._prepared[1],
            (last.weight, last.bias),
            (self._scores.weight, self._scores.bias),
            None if bias is None else bias.reshape([texts, -1]),
            position,
            self._layers[0].norms[0].epsilon,
            last.epsilon,
        )[0]

    @cached_property
    def _layers(self) -> list[_Layer]:
        return [_Layer.of(layer) for layer in self.model.transformer.h]

    @cached_property
    def _last_norm(self) -> _Norm:
        return _Norm(self.model.transformer.layernorm)

    @cached_property
    def _scores(self) -> _Scores:
        head = self.model.lm_head
        return _Scores(getattr(head, "weight", self.model.transformer.w.weight), head.bias)

    def _keep(self, tokens: Tensor, kept: Tensor | None, position: int) -> None:
        """Append the tokens' part to the mask."""
        if self.attention_mask is None and kept is None:
            return
        if self.attention_mask is None:
            self.attention_mask = paddle.ones([tokens.shape[0], position], "int64")
        own = paddle.ones_like(tokens) if kept is None else kept
        before = self.attention_mask
        self.attention_mask = paddle.concat([before, own.astype(before.dtype)], axis=1)


def _is_plain(model: Port) -> bool:
    """Whether its layers are plain ones of this folder, in their weights' precision, without dropout or gradients."""
    return (
        model.adapter is None
        and not model.training
        and not (is_lowered("linear") or is_lowered("attention") or paddle.is_grad_enabled())
    )
