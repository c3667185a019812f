"""CTRL's logits after each further token of texts, computed from cached keys and values.

On a CPU, a small model spends most of a token's time on overhead and not on arithmetic: layer calls, hook look-ups,
unused gradients. The layers of :mod:`.modeling` are therefore written here again for one position in evaluation. For a
few texts in float32, one compiled loop computes a token and reads each weight once: 128 tokens of 4 layers of width 320
take 0.18 s instead of 0.37 (two cores of an Intel Xeon). The gate's ``decoding/`` compares all versions with the
reference.

Letters in the shapes: B number of texts, T positions with cached keys and values.
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
from models.operations.precision import is_cast_to_bfloat16

if TYPE_CHECKING:
    from models.ctrl.layers import Cache, EncoderLayer
    from models.port.base import Port


#: Maximum number of texts at which the compiled loop is faster than Paddle's matrix products (measured).
MAX_COMPILED_TEXTS = 4


class _Linear:
    """A :class:`models.operations.ops.Linear` in evaluation, x W + b."""

    def __init__(self, linear: Any) -> None:
        self.weight, self.bias = linear.weight, linear.bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the linear layer: (B, in) -> (B, out)."""
        return paddle.matmul(x, self.weight) + self.bias


class _LayerNorm:
    """A :class:`models.operations.ops.LayerNorm` in evaluation."""

    def __init__(self, norm: Any) -> None:
        self.weight, self.bias, self.epsilon = norm.weight, norm.bias, norm._epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize each row: (B, width) -> (B, width)."""
        if x.dtype == paddle.float64:  # Paddle's own layer norm rounds epsilon to float32.
            return layer_norm(x, self.weight, self.bias, self.epsilon)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.epsilon)


class _OutputLayer:
    """The language-model head in evaluation, x W^T + b."""

    def __init__(self, output_weight: Tensor, output_bias: Tensor) -> None:
        self.weight, self.bias = output_weight, output_bias

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Return a score for every token of the vocabulary: (B, width) -> (B, vocabulary)."""
        return paddle.matmul(hidden_states, self.weight, transpose_y=True) + self.bias


@dataclass(frozen=True)
class _DecoderLayer:
    """A :class:`.layers.EncoderLayer` in evaluation, for one position.

    Attributes:
        num_heads: number of heads.
        norms: layer norms before the attention and before the feed-forward layer.
        projections: projections to queries, keys and values.
        dense: output projection of the attention.
        inner: first linear layer of the feed-forward layer, (n_embd -> dff).
        outer: second linear layer of the feed-forward layer, (dff -> n_embd).
    """

    num_heads: int
    norms: tuple[_LayerNorm, _LayerNorm]
    projections: tuple[_Linear, _Linear, _Linear]
    dense: _Linear
    inner: _Linear
    outer: _Linear

    @classmethod
    def from_encoder_layer(cls, encoder_layer: EncoderLayer) -> _DecoderLayer:
        """Return the layer that shares the parameters of an encoder layer."""
        attention, (inner, _, outer) = encoder_layer.multi_head_attention, encoder_layer.ffn
        return cls(
            num_heads=attention.n_head,
            norms=(_LayerNorm(encoder_layer.layernorm1), _LayerNorm(encoder_layer.layernorm2)),
            projections=(_Linear(attention.Wq), _Linear(attention.Wk), _Linear(attention.Wv)),
            dense=_Linear(attention.dense),
            inner=_Linear(inner),
            outer=_Linear(outer),
        )

    @cached_property
    def parameters(self) -> list[Tensor]:
        """The parameters in the order of :func:`models.operations.compiled.decoder_step`."""
        first, second = self.norms
        modules = (first, *self.projections, self.dense, second, self.inner, self.outer)
        return [tensor.contiguous() for module in modules for tensor in (module.weight, module.bias)]

    def __call__(self, hidden_states: Tensor, bias: Tensor | None, past: Cache) -> tuple[Tensor, Cache]:
        """Return the output of the layer, (B, n_embd), and its keys and values of all positions so far.

        Args:
            hidden_states: input of the layer at the new position, (B, n_embd).
            bias: bias of the scores, (B, 1, 1, T + 1); None if the new position attends to all positions.
            past: keys and values of earlier positions, (B, heads, T, depth) each.
        """
        attention_output, present = self.attend(self.norms[0](hidden_states), bias, past)
        hidden_states = hidden_states + attention_output
        return hidden_states + self.outer(F.relu(self.inner(self.norms[1](hidden_states)))), present

    def attend(self, hidden_states: Tensor, bias: Tensor | None, past: Cache) -> tuple[Tensor, Cache]:
        """Return the output of the attention, (B, n_embd), and the keys and values; see :meth:`__call__`.

        Args:
            hidden_states: input of the attention, (B, n_embd).
            bias: bias of the attention scores, which masks padding; None without padding.
            past: keys and values of the earlier positions.
        """
        depth = hidden_states.shape[1] // self.num_heads
        query, key, value = (
            project(hidden_states).reshape([-1, self.num_heads, 1, depth]) for project in self.projections
        )
        key, value = paddle.concat([past[0], key], axis=2), paddle.concat([past[1], value], axis=2)
        scores = paddle.matmul(query, key, transpose_y=True) / math.sqrt(depth)  # (B, heads, 1, T + 1)
        probabilities = F.softmax(scores if bias is None else scores + bias)
        return self.dense(paddle.matmul(probabilities, value).reshape(hidden_states.shape)), (key, value)


class Continuation:
    """Texts that are continued token by token, with the cached keys and values of all layers.

    Args:
        port_model: language model in evaluation mode.
        past: keys and values of each layer, (B, heads, T, depth) each.
        attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
        make_bias: :func:`models.ctrl.layers.attention_bias`.
    """

    def __init__(
        self,
        port_model: Port,
        past: Sequence[Cache],
        attention_mask: Tensor | None,
        make_bias: Callable[[int, int, Tensor, str], Tensor],
    ) -> None:
        self.model = port_model
        self._cache = list(past)  # may have unused room for later positions
        # The list of the cache, and the input of the compiled loop, which is rebuilt for another list.
        self._loop_layers: tuple[list[Cache], compiled.DecoderLayers] = [], compiled.DecoderLayers()
        self._length = past[0][0].shape[2]
        self.attention_mask = attention_mask
        self._make_bias = make_bias

    @property
    def num_texts(self) -> int:
        """Number of texts, B."""
        return self._cache[0][0].shape[0]

    @property
    def past(self) -> list[Cache]:
        """Keys and values of each layer, (B, heads, T, depth) each."""
        if self._cache[0][0].shape[2] == self._length:
            return self._cache
        return [(keys[:, :, : self._length], values[:, :, : self._length]) for keys, values in self._cache]

    def select_texts(self, rows: Tensor) -> None:
        """Continue only the texts with the given row numbers, int64 (B,), which may repeat."""
        self._cache = [(paddle.index_select(k, rows), paddle.index_select(v, rows)) for k, v in self._cache]
        if self.attention_mask is not None:
            self.attention_mask = paddle.index_select(self.attention_mask, rows)

    def __call__(self, tokens: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Return the logits after one more token of each text, (B, vocabulary).

        Args:
            tokens: next token of each text, int64 (B, 1).
            token_mask: 1 for tokens and 0 for padding, (B, 1); None without padding.

        Raises:
            ValueError: the texts have ``n_positions`` tokens already.
        """
        position = self._length
        self._extend_mask(tokens, token_mask, position)
        if not _has_plain_layers(self.model):
            output = self.model(tokens, self.attention_mask, past_key_values=self.past, use_cache=True)
            self._cache, self._length = list(output.past_key_values), position + 1
            return output.logits[:, -1]
        body = self.model.transformer
        if position >= body.config.n_positions:
            raise ValueError(f"{position + 1} positions are more than n_positions {body.config.n_positions}")
        bias = None
        if self.attention_mask is not None:
            bias = self._make_bias(position, 1, self.attention_mask, str(body.w.weight.dtype).rsplit(".", 1)[-1])
        has_few_texts = self.num_texts <= MAX_COMPILED_TEXTS and tokens.dtype == paddle.int64
        uses_loop = has_few_texts and compiled.supports_compiled(body.w.weight)
        compute_logits = self._compute_by_loop if uses_loop else self._compute_by_layers
        logits = compute_logits(tokens, bias, position)
        self._length = position + 1
        return logits

    def _compute_by_layers(self, tokens: Tensor, bias: Tensor | None, position: int) -> Tensor:
        """Return the logits of the tokens at ``position``, (B, vocabulary), by Paddle's operations.

        Args:
            tokens: token ids of the position, (B, 1).
            bias: bias of the attention scores, which masks padding; None without padding.
            position: number of positions before the tokens.
        """
        position_ids = paddle.full_like(tokens, position)
        hidden_states = self.model.transformer.embed(tokens, position_ids).squeeze(1)  # (B, n_embd)
        presents = []
        for layer, past in zip(self._layers, self.past, strict=True):
            hidden_states, present = layer(hidden_states, bias, past)
            presents.append(present)
        self._cache = presents
        return self._output_layer(self._last_norm(hidden_states))

    def _compute_by_loop(self, tokens: Tensor, bias: Tensor | None, position: int) -> Tensor:
        """Return the logits of the tokens at ``position``, (B, vocabulary), by one compiled loop.

        The loop writes the new keys and values into the cache, which has space for later positions.

        Args:
            tokens: token ids of the position, (B, 1).
            bias: bias of the attention scores, which masks padding; None without padding.
            position: number of positions before the tokens.
        """
        num_texts, heads, num_slots, depth = self._cache[0][0].shape
        if num_slots == position:
            room = paddle.empty([num_texts, heads, compiled.CACHE_GROWTH, depth], "float32")
            self._cache = [(paddle.concat([k, room], axis=2), paddle.concat([v, room], axis=2)) for k, v in self._cache]
        if self._loop_layers[0] is not self._cache:
            layers = [(*cache, *layer.parameters) for cache, layer in zip(self._cache, self._layers, strict=True)]
            self._loop_layers = self._cache, compiled.DecoderLayers(layers)
        body, last_norm = self.model.transformer, self._last_norm
        return compiled.decoder_step(
            tokens,
            body.w.weight,
            body.table_in(paddle.float32),
            self._loop_layers[1],
            (last_norm.weight, last_norm.bias),
            (self._output_layer.weight, self._output_layer.bias),
            None if bias is None else bias.reshape([num_texts, -1]),
            position,
            self._layers[0].norms[0].epsilon,
            last_norm.epsilon,
        )[0]

    @cached_property
    def _layers(self) -> list[_DecoderLayer]:
        """Views of the model's layers as decoder layers, in their order."""
        return [_DecoderLayer.from_encoder_layer(layer) for layer in self.model.transformer.h]

    @cached_property
    def _last_norm(self) -> _LayerNorm:
        """View of the layer norm after the last layer."""
        return _LayerNorm(self.model.transformer.layernorm)

    @cached_property
    def _output_layer(self) -> _OutputLayer:
        """View of the output layer, whose weight is the tied token embedding unless the head has its own."""
        head = self.model.lm_head
        return _OutputLayer(getattr(head, "weight", self.model.transformer.w.weight), head.bias)

    def _extend_mask(self, tokens: Tensor, token_mask: Tensor | None, position: int) -> None:
        """Append the mask of new tokens to the attention mask.

        Args:
            tokens: next token of each text, (B, 1).
            token_mask: 1 for tokens and 0 for padding, (B, 1); None without padding.
            position: position of the new tokens.
        """
        if self.attention_mask is None and token_mask is None:
            return
        if self.attention_mask is None:
            self.attention_mask = paddle.ones([tokens.shape[0], position], "int64")
        token_mask = paddle.ones_like(tokens) if token_mask is None else token_mask
        past_mask = self.attention_mask
        self.attention_mask = paddle.concat([past_mask, token_mask.astype(past_mask.dtype)], axis=1)


def _has_plain_layers(port_model: Port) -> bool:
    """Return whether the layers have no adapter, dropout, gradients or casts to bfloat16."""
    return (
        port_model.adapter is None
        and not port_model.training
        and not (is_cast_to_bfloat16("linear") or is_cast_to_bfloat16("attention") or paddle.is_grad_enabled())
    )
