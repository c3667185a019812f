"""Reformer's logits after each further token of texts: one position at a time, with the earlier keys and values.

A position is computed once, when it is the last, and kept: later ones attend to it as it was then, as with the cache of
``transformers``. What it attends to itself is what :mod:`.attention` shows the last position of a text: the chunk that
it is sorted into and those before, in the ring of all hash rounds, without padding. So local attention gives what the
whole text gives, and so does an LSH layer that no attention follows. In the whole text a new position also moves the
chunks behind its bucket: earlier ones then see others than before, and only layers above an LSH layer notice.

(The cache of ``transformers`` 4.55 shows a position others. It fills the last chunk, and those before the first one,
with positions of other buckets; draws rotations for each token where ``hash_seed`` is not set; and gives all texts of a
batch, so all beams, the keys of the first.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from models.operations.ops import LayerNorm, Linear, product
from models.operations.precision import is_lowered
from models.reformer import lengths, schema
from models.reformer.attention import (
    KEY_NORM_EPSILON,
    ChunkedSelfAttention,
    LocalSelfAttention,
    LSHSelfAttention,
    masked_value,
    self_masked_value,
)

if TYPE_CHECKING:
    from models.reformer.modeling import ReformerLayer, ReformerModelWithLMHead


def _lean(layer: Any) -> Callable[[Tensor], Tensor]:
    """Return what a layer computes in evaluation, without hooks and gradients if it is a plain one: for one position
    they take longer than the arithmetic."""
    if type(layer) is Linear and not is_lowered("linear"):
        weight, bias = layer.weight, layer.bias  # F.linear looks flags up, which takes as long as the product
        return (lambda x: paddle.matmul(x, weight)) if bias is None else (lambda x: paddle.matmul(x, weight) + bias)
    if type(layer) is LayerNorm and layer.weight.dtype != paddle.float64:  # Paddle rounds epsilon
        shape, epsilon = layer.weight.shape, layer._epsilon
        return partial(F.layer_norm, normalized_shape=shape, weight=layer.weight, bias=layer.bias, epsilon=epsilon)
    return layer.forward


class _Attention:
    """An attention for one more position of texts, which keeps the keys and values (B, H, T, D) of all before.

    Args:
        hidden_states: (B, T, hidden), the attention's input.
    """

    def __init__(self, layer: ChunkedSelfAttention, hidden_states: Tensor) -> None:
        self.layer = layer
        self.heads, self.size = layer.num_attention_heads, layer.attention_head_size
        self.value = _lean(layer.value)
        _, self.keys, self.values = self.project(hidden_states)
        self.dtype = str(self.keys.dtype).rpartition(".")[2]

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, hidden) -> queries, keys and values (B, H, T, D)."""
        raise NotImplementedError

    def attend(self, query: Tensor, key: Tensor, padded: int) -> Tensor:
        """Query and key of the last position (B, H, 1, D) -> (B, H, 1, D), in texts padded to this length."""
        raise NotImplementedError

    def __call__(self, hidden_states: Tensor, padded: int) -> Tensor:
        """(B, 1, hidden) -> (B, 1, H*D)."""
        query, key, value = self.project(hidden_states)
        self.keys, self.values = paddle.concat([self.keys, key], 2), paddle.concat([self.values, value], 2)
        return self.attend(query, key, padded).reshape([-1, 1, self.heads * self.size])

    def choose(self, rows: Tensor) -> None:
        """Go on with these texts, int64 (B,)."""
        self.keys, self.values = paddle.index_select(self.keys, rows), paddle.index_select(self.values, rows)

    def split(self, projected: Tensor) -> Tensor:
        """(B, T, H*D) -> (B, H, T, D)."""
        batch, length, _ = projected.shape
        if length == 1:
            return projected.reshape([batch, self.heads, 1, self.size])
        return projected.reshape([batch, length, self.heads, self.size]).transpose([0, 2, 1, 3])

    def seen_from(self, places: np.ndarray, total: int) -> np.ndarray:
        """Return the places that the chunk of a place sees, if ``total`` of them form a ring: (...) -> (..., K)."""
        size = min(self.layer.chunk_length, total)
        before = self.layer.num_chunks_before if size < total else 0
        chunks = (places[..., None] // size + np.arange(-before, 1)) % (total // size)
        return (chunks[..., None] * size + np.arange(size)).reshape([*places.shape, -1])


class _Local(_Attention):
    def __init__(self, layer: LocalSelfAttention, hidden_states: Tensor) -> None:
        self.query, self.key = _lean(layer.query), _lean(layer.key)
        super().__init__(layer, hidden_states)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.split(of(hidden_states)) for of in (self.query, self.key, self.value))
        return query, key / math.sqrt(self.size), value

    def attend(self, query: Tensor, key: Tensor, padded: int) -> Tensor:
        size, before = self.layer.chunk_length, self.layer.num_chunks_before
        last = self.keys.shape[2] - 1
        if before * size < padded:
            first = max(0, last // size - before) * size
            keys, values = self.keys[:, :, first:], self.values[:, :, first:]
        else:  # in a ring of fewer chunks some are seen more than once
            seen = self.seen_from(np.array(last), padded)
            rows = paddle.to_tensor(seen[seen <= last])
            keys, values = paddle.index_select(self.keys, rows, 2), paddle.index_select(self.values, rows, 2)
        return product(F.softmax(product(query, keys, transpose_y=True)), values)


class _LSH(_Attention):
    """
    Attributes:
        buckets: int64 (B, H, R, T), those of the first positions.
    """

    def __init__(self, layer: LSHSelfAttention, hidden_states: Tensor) -> None:
        self.hashing, self.query_key = layer, _lean(layer.query_key)
        super().__init__(layer, hidden_states)
        self.buckets = np.zeros([len(hidden_states), self.heads, layer.num_hashes, 0], np.int64)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query = self.split(self.query_key(hidden_states))
        mean_square = (query * query).mean(-1, keepdim=True)
        key = query * (paddle.rsqrt(mean_square + KEY_NORM_EPSILON) / math.sqrt(self.size))
        return query, key, self.split(self.value(hidden_states))

    def choose(self, rows: Tensor) -> None:
        super().choose(rows)
        self.buckets = self.buckets[rows.numpy()]

    def attend(self, query: Tensor, key: Tensor, padded: int) -> Tensor:
        if padded <= self.layer.chunk_length:  # nothing is hashed
            seen = np.broadcast_to(np.arange(padded), [*query.shape[:2], 1, padded])
            order = seen[..., : self.keys.shape[2]]
        else:
            buckets = self.hashed(key, padded)
            order = np.argsort(buckets, axis=-1, kind="stable")
            place = (buckets <= buckets[..., -1:]).sum(-1) - 1  # the last of its bucket
            rounds = buckets.shape[2]
            seen = self.seen_from(place + np.arange(rounds) * padded, rounds * padded)
        return self.attend_to(query, order, seen // padded, seen % padded)

    def attend_to(self, query: Tensor, order: np.ndarray, of_round: np.ndarray, place: np.ndarray) -> Tensor:
        """Attend in each hash round to what is seen there.

        Args:
            order: int64 (B, H, R, T), the positions of each round as they are sorted.
            of_round, place: int64 (B, H, R, K), of what is seen: the round and the place there; from T on, padding.
        """
        batch, heads, rounds, length = order.shape
        row = np.arange(batch * heads).reshape([batch, heads, 1, 1])
        at = (row * rounds + of_round) * length + np.minimum(place, length - 1)
        position = order.reshape(-1)[at]
        rows = paddle.to_tensor((row * length + position).reshape(-1))
        shape = [batch, heads, rounds, -1, self.size]
        key, value = (
            paddle.gather(kept.reshape([-1, self.size]), rows).reshape(shape) for kept in (self.keys, self.values)
        )
        # Added, not put in place of scores as in a whole text: exp makes 0 of either where anything else is seen.
        added = np.where(place < length, (position == length - 1) * self_masked_value(query), masked_value(query))
        added = added[..., None, :].astype(self.dtype)
        scores = product(query.unsqueeze(2), key, transpose_y=True) + paddle.to_tensor(added)  # (B, H, R, 1, K)
        context = product(F.softmax(scores), value)  # (B, H, R, 1, D)
        if rounds == 1:
            return context
        share = F.softmax(paddle.logsumexp(scores.squeeze(3), -1, keepdim=True), axis=2)  # (B, H, R, 1)
        return (context.squeeze(3) * share).sum(2)

    def hashed(self, key: Tensor, padded: int) -> np.ndarray:
        """Return the buckets of all positions, of which ``key`` is the last. They are by the rotations of the first
        call throughout. Keys are scaled vectors, so they fall into the vectors' buckets."""
        batch, heads, rounds, known = self.buckets.shape
        if known == 0:
            self.rotations, key = self.hashing.draw_rotations(padded, key.dtype), self.keys
        found = self.hashing.hash_vectors(key.reshape([-1, self.size]), self.rotations, batch, None).numpy()
        self.buckets = np.concatenate([self.buckets, found.reshape([batch, heads, rounds, -1])], axis=3)
        return self.buckets


class _Layer:
    """A :class:`.modeling.ReformerLayer` in evaluation, for one more position."""

    def __init__(self, layer: ReformerLayer, attention: _Attention) -> None:
        self.attention = attention
        self.norms = _lean(layer.attention.layer_norm), _lean(layer.feed_forward.layer_norm)
        self.output = _lean(layer.attention.output.dense)
        self.inner, self.outer = _lean(layer.feed_forward.dense.dense), _lean(layer.feed_forward.output.dense)
        self.activation = _lean(layer.feed_forward.dense.act_fn)

    def __call__(self, attention_stream: Tensor, hidden_stream: Tensor, padded: int) -> tuple[Tensor, Tensor]:
        """Both streams (B, 1, hidden) -> both, after this layer."""
        attention_stream = attention_stream + self.output(self.attention(self.norms[0](hidden_stream), padded))
        widened = self.activation(self.inner(self.norms[1](attention_stream)))
        return attention_stream, hidden_stream + self.outer(widened)


class Continuation:
    """Continues texts from what the attentions keep.

    Args:
        model: in evaluation mode.
        input_ids: int64 (B, T), the beginnings of the texts.

    Attributes:
        texts: their number, B.
        logits: (B, vocabulary), after the beginnings.
    """

    def __init__(self, model: ReformerModelWithLMHead, input_ids: Tensor) -> None:
        self.texts, self.length = input_ids.shape
        self._config = vars(model.config)
        attentions: list[_Attention] = []

        def keep(layer: ChunkedSelfAttention, given: tuple[Tensor, ...]) -> None:
            kind: Any = _LSH if isinstance(layer, LSHSelfAttention) else _Local
            attentions.append(kind(layer, given[0][:, : self.length]))

        layers = list(model.reformer.encoder.layers)
        hooks = [layer.attention.self_attention.register_forward_pre_hook(keep) for layer in layers]
        self._padded = lengths.evaluated(self._config, self.length)  # where texts are computed whole
        padding = [0, 0, 0, self._padded - self.length]
        ids = F.pad(input_ids, padding, value=model.config.pad_token_id or 0, pad_from_left_axis=True)
        kept = F.pad(paddle.ones_like(input_ids), padding, pad_from_left_axis=True)
        try:
            self.logits = model(ids, kept).logits[:, self.length - 1]
        finally:
            for hook in hooks:
                hook.remove()
        self._words = model.reformer.embeddings.word_embeddings.weight
        self._position = model.reformer.embeddings.position_embeddings.of_position
        self._layers = [_Layer(*pair) for pair in zip(layers, attentions, strict=True)]
        self._last_norm, self._scores = _lean(model.reformer.encoder.layer_norm), _lean(model.lm_head.decoder)

    def choose(self, rows: Tensor) -> None:
        """Continue only these texts, int64 (B,); one may occur more than once."""
        self.texts = len(rows)
        for layer in self._layers:
            layer.attention.choose(rows)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return logits (B, vocabulary) after one more token (B, 1) per text. Raises ValueError beyond the model's
        positions."""
        self.length += 1
        if self.length > self._padded:
            self._padded, most = lengths.evaluated(self._config, self.length), schema.positions(self._config)
            if self._padded > most:
                raise ValueError(f"{self.length} positions, padded to {self._padded}, are more than the model's {most}")
        attention_stream = hidden_stream = F.embedding(tokens, self._words) + self._position(self.length - 1)
        for layer in self._layers:
            attention_stream, hidden_stream = layer(attention_stream, hidden_stream, self._padded)
        normed = self._last_norm(paddle.concat([attention_stream, hidden_stream], axis=-1))
        return self._scores(normed).squeeze(1)
