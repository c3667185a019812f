"""Reformer's logits after each further token of texts: one position at a time, with the earlier keys and values.

A position is computed once, when it is the last, and kept: later ones attend to it as it was then, as with the cache of
``transformers``. What it attends to itself is what :mod:`.attention` shows the last position of a text: the chunk that
it is sorted into and those before, in the ring of all hash rounds, without padding. So local attention gives what the
whole text gives, and so does an LSH layer that no attention follows. In the whole text a new position also moves the
chunks behind its bucket: earlier ones then see others than before, and only layers above an LSH layer notice.

Plain layers in float32 on a CPU are one compiled loop, since a token's time is not arithmetic, but overhead: 400 tokens
of two layers take 0.3 s in place of 0.9 (two cores of an Intel Xeon). The gate's ``decoding/`` compares the loop in
float32, and Paddle's operations in float64.

(The cache of ``transformers`` 4.55 shows a position others. It fills the last chunk, and those before the first one,
with positions of other buckets; draws rotations for each token where ``hash_seed`` is not set; and gives all texts of a
batch, so all beams, the keys of the first.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from models.operations import compiled
from models.operations.ops import LayerNorm, Linear, product
from models.operations.precision import is_lowered
from models.port.base import Port
from models.reformer import lengths, schema
from models.reformer.attention import (
    KEY_NORM_EPSILON,
    SELF_MASKED,
    ChunkedSelfAttention,
    LocalSelfAttention,
    LSHSelfAttention,
    masked_value,
    self_masked_value,
)


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
    """An attention for one more position of texts, which keeps the keys and values of all before.

    Args:
        hidden_states: (B, T, hidden), the attention's input.

    Attributes:
        length: T, the number of positions.
        keys, values: (B, H, T, D), or with room for later positions.
    """

    #: The attributes that have an axis of positions, and which one; None for what is not kept yet.
    KEPT: ClassVar[dict[str, int]] = {"keys": 2, "values": 2}

    #: Of query, key (None: the query is the key) and value.
    weights: tuple[Tensor, Tensor | None, Tensor]

    def __init__(self, layer: ChunkedSelfAttention, hidden_states: Tensor) -> None:
        self.layer = layer
        self.heads, self.size = layer.num_attention_heads, layer.attention_head_size
        self.value = _lean(layer.value)
        self.length = hidden_states.shape[1]
        _, self.keys, self.values = self.project(hidden_states)
        self.dtype = str(self.keys.dtype).rpartition(".")[2]

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, hidden) -> queries, keys and values (B, H, T, D)."""
        raise NotImplementedError

    def see(self, query: Tensor, padded: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which positions the last one sees, and what is added to its scores.

        Args:
            query: (B, H, 1, D).
            padded: length that texts are padded to.

        Returns:
            int64, and the keys' type, (B, H, N): those of all hash rounds. A round's share of the result is that of its
            normaliser, so the rounds are one softmax.
        """
        raise NotImplementedError

    def __call__(self, hidden_states: Tensor, padded: int) -> Tensor:
        """(B, 1, hidden) -> (B, 1, H*D)."""
        self.take_room()
        query, key, value = self.project(hidden_states)
        self.keys, self.values = paddle.concat([self.keys, key], 2), paddle.concat([self.values, value], 2)
        self.length += 1
        return self.attend(query, *self.see(query, padded)).reshape([-1, 1, self.heads * self.size])

    def attend(self, query: Tensor, seen: np.ndarray, added: np.ndarray) -> Tensor:
        """(B, H, 1, D) -> the same; of each head attend to what it sees, (B, H, N)."""
        batch, heads, count = seen.shape
        first = np.arange(batch * heads).reshape([batch, heads, 1]) * self.length
        rows = paddle.to_tensor((first + seen).reshape(-1))
        key, value = (
            paddle.gather(kept.reshape([-1, self.size]), rows).reshape([batch, heads, count, self.size])
            for kept in (self.keys, self.values)
        )
        scores = product(query, key, transpose_y=True) + paddle.to_tensor(added[:, :, None])
        return product(F.softmax(scores), value)

    def begin_hashing(self, padded: int) -> bool:
        """Hash all positions where texts have several chunks for the first time; return whether they have."""
        return False

    def described(self, parameters: list[Tensor | None]) -> compiled.ReversibleLayer:
        """What the loop is told of a plain layer with this attention."""
        layer = self.layer
        hashing = None, None, None, None, 0, 1
        return compiled.ReversibleLayer(
            self.keys, self.values, *hashing, layer.chunk_length, layer.num_chunks_before, parameters
        )

    def put_buckets(self) -> bool:
        """Put the next position's buckets, if they are given, where the loop takes them from; return whether they
        are."""
        return False

    def make_room(self) -> bool:
        """Have room for one more position; return whether anything that is kept is another tensor now."""
        if self.keys.shape[2] > self.length:
            return False
        self._change(lambda kept, axis: paddle.concat([kept, _room_for(kept, axis)], axis))
        return True

    def take_room(self) -> None:
        """Have no room for later positions."""
        if self.keys.shape[2] > self.length:
            self._change(lambda kept, axis: paddle.slice(kept, [axis], [0], [self.length]))

    def choose(self, rows: Tensor) -> None:
        """Go on with these texts, int64 (B,)."""
        self._change(lambda kept, axis: paddle.index_select(kept, rows))

    def _change(self, change: Callable[[Tensor, int], Tensor]) -> None:
        """Change all that is kept, given its axis of positions."""
        for name, axis in self.KEPT.items():
            if (kept := getattr(self, name)) is not None:
                setattr(self, name, change(kept, axis))

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
        self.weights = layer.query.weight, layer.key.weight, layer.value.weight
        super().__init__(layer, hidden_states)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.split(of(hidden_states)) for of in (self.query, self.key, self.value))
        return query, key / math.sqrt(self.size), value

    def see(self, query: Tensor, padded: int) -> tuple[np.ndarray, np.ndarray]:
        seen = self.seen_from(np.array(self.length - 1), padded)
        seen = np.tile(seen[seen < self.length], [*query.shape[:2], 1])
        return seen, np.zeros(seen.shape, self.dtype)


class _LSH(_Attention):
    """
    Attributes:
        buckets: int64 (B, H, R, T), once texts have several chunks.
        order: alike, the positions of each hash round as they are sorted.
        rotations: those of the first time, by which all positions are hashed.
    """

    KEPT: ClassVar[dict[str, int]] = {**_Attention.KEPT, "buckets": 3, "order": 3}

    def __init__(self, layer: LSHSelfAttention, hidden_states: Tensor) -> None:
        self.hashing, self.query_key = layer, _lean(layer.query_key)
        self.weights = layer.query_key.weight, None, layer.value.weight
        self.buckets: Tensor | None = None
        self.order: Tensor | None = None
        self.rotations: Tensor | None = None
        super().__init__(layer, hidden_states)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query = self.split(self.query_key(hidden_states))
        mean_square = (query * query).mean(-1, keepdim=True)
        key = query * (paddle.rsqrt(mean_square + KEY_NORM_EPSILON) / math.sqrt(self.size))
        return query, key, self.split(self.value(hidden_states))

    def begin_hashing(self, padded: int) -> bool:
        if self.buckets is not None or padded <= self.layer.chunk_length:
            return False
        self.take_room()
        self.rotations = self.hashing.draw_rotations(padded, self.keys.dtype)
        # Keys are scaled queries, so they fall into the queries' buckets.
        self.order = paddle.argsort(self.hashed(self.keys), stable=True)
        return True

    def described(self, parameters: list[Tensor | None]) -> compiled.ReversibleLayer:
        plain = super().described(parameters)
        if self.rotations is None:
            return plain
        return plain._replace(
            buckets=self.buckets,
            order=self.order,
            rotations=self.rotations,
            factors=paddle.to_tensor(self.hashing.bucket_factors(self.length), "int64"),
            axes=0 if self._are_given else self.rotations.shape[-1],
            rounds=self.hashing.num_hashes,
        )

    @property
    def _are_given(self) -> bool:
        """Whether the gate has replaced ``hash_vectors`` by a function that knows the buckets, whatever the vectors."""
        return "hash_vectors" in vars(self.hashing)

    def put_buckets(self) -> bool:
        if self.buckets is None or not self._are_given:
            return False
        last = self._hashed(self.keys[:, :, self.length - 1 : self.length])
        parts = [self.buckets[..., : self.length], last, self.buckets[..., self.length + 1 :]]
        self.buckets = paddle.concat(parts, 3)
        return True

    def hashed(self, vectors: Tensor) -> Tensor:
        """Return the buckets of all positions, int64 (B, H, R, T), of which ``vectors`` (B, H, ., D) are the last."""
        found = self._hashed(vectors)
        self.buckets = found if self.buckets is None else paddle.concat([self.buckets, found], 3)
        return self.buckets

    def _hashed(self, vectors: Tensor) -> Tensor:
        """(B, H, T, D) -> int64 (B, H, R, T)."""
        found = self.hashing.hash_vectors(vectors.reshape([-1, self.size]), self.rotations, len(vectors), None)
        return found.reshape([len(vectors), self.heads, self.hashing.num_hashes, -1])

    def see(self, query: Tensor, padded: int) -> tuple[np.ndarray, np.ndarray]:
        if self.buckets is None:
            order = np.broadcast_to(np.arange(self.length), [*query.shape[:2], 1, self.length])
            return self.read(query, order, order * 0, order)
        buckets = self.hashed(query).numpy()
        order = np.argsort(buckets, axis=-1, kind="stable")
        self.order = paddle.to_tensor(order)
        place = (buckets <= buckets[..., -1:]).sum(-1) - 1  # the last of its bucket
        rounds = buckets.shape[2]
        seen = self.seen_from(place + np.arange(rounds) * padded, rounds * padded)
        return self.read(query, order, seen // padded, seen % padded)

    def read(
        self, query: Tensor, order: np.ndarray, of_round: np.ndarray, place: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`see`, of places in the sorted rounds.

        Args:
            order: int64 (B, H, R, T), the positions of each round as they are sorted.
            of_round, place: int64 (B, H, R, K), of what is seen: the round and the place there; from T on, padding.
        """
        batch, heads, rounds, length = order.shape
        row = np.arange(batch * heads).reshape([batch, heads, 1, 1])
        seen = order.reshape(-1)[(row * rounds + of_round) * length + np.minimum(place, length - 1)]
        # Added, not put in place of scores as in a whole text: exp makes 0 of either where anything else is seen.
        added = np.where(place < length, (seen == length - 1) * self_masked_value(query), masked_value(query))
        return seen.reshape([batch, heads, -1]), added.reshape([batch, heads, -1]).astype(self.dtype)


def _room_for(kept: Tensor, axis: int) -> Tensor:
    """For more positions, along this axis."""
    return paddle.empty([*kept.shape[:axis], compiled.ROOM, *kept.shape[axis + 1 :]], kept.dtype)


class _Layer:
    """A :class:`.modeling.ReformerLayer` in evaluation, for one more position."""

    def __init__(self, layer: nn.Layer, attention: _Attention) -> None:
        self.layer, self.attention = layer, attention
        self.norms = _lean(layer.attention.layer_norm), _lean(layer.feed_forward.layer_norm)
        self.output = _lean(layer.attention.output.dense)
        self.inner, self.outer = _lean(layer.feed_forward.dense.dense), _lean(layer.feed_forward.output.dense)
        self.activation = _lean(layer.feed_forward.dense.act_fn)

    def __call__(self, attention_stream: Tensor, hidden_stream: Tensor, padded: int) -> tuple[Tensor, Tensor]:
        """Both streams (B, 1, hidden) -> both, after this layer."""
        attention_stream = attention_stream + self.output(self.attention(self.norms[0](hidden_stream), padded))
        widened = self.activation(self.inner(self.norms[1](attention_stream)))
        return attention_stream, hidden_stream + self.outer(widened)

    def described(self) -> compiled.ReversibleLayer:
        """What the loop is told of this layer, if it is a plain one."""
        attention, block = self.layer.attention, self.layer.feed_forward
        norm = attention.layer_norm
        maps = attention.output.dense, block.layer_norm, block.dense.dense, block.output.dense
        parameters = [norm.weight, norm.bias, *self.attention.weights]
        parameters += [parameter for part in maps for parameter in (part.weight, part.bias)]
        contiguous = [parameter if parameter is None else parameter.contiguous() for parameter in parameters]
        return self.attention.described(contiguous)


class Continuation:
    """Continues texts from what the attentions keep.

    Args:
        model: a :class:`.modeling.ReformerModelWithLMHead` in evaluation mode.
        input_ids: int64 (B, T), the beginnings of the texts.

    Attributes:
        texts: their number, B.
        logits: (B, vocabulary), after the beginnings.
    """

    def __init__(self, model: Port, input_ids: Tensor) -> None:
        self.num_texts, self.length = input_ids.shape
        self._config = vars(model.config)
        attentions: list[_Attention] = []

        def keep(layer: ChunkedSelfAttention, given: tuple[Tensor, ...]) -> None:
            kind: Any = _LSH if isinstance(layer, LSHSelfAttention) else _Local
            attentions.append(kind(layer, given[0][:, : self.length]))

        layers = list(model.reformer.encoder.layers)
        hooks = [layer.attention.self_attention.register_forward_pre_hook(keep) for layer in layers]
        self._padded = lengths.evaluation_length(self._config, self.length)  # where texts are computed whole
        padding = [0, 0, 0, self._padded - self.length]
        ids = F.pad(input_ids, padding, value=model.config.pad_token_id or 0, pad_from_left_axis=True)
        kept = F.pad(paddle.ones_like(input_ids), padding, pad_from_left_axis=True)
        try:
            self.logits = model(ids, kept).logits[:, self.length - 1]
        finally:
            for hook in hooks:
                hook.remove()
        self._model = model
        self._described: compiled.DecoderLayers | None = None  # for the loop, as long as the same tensors are kept
        self._words = model.reformer.embeddings.word_embeddings.weight
        self._position = model.reformer.embeddings.position_embeddings.of_position
        self._attentions = attentions
        self._layers = [_Layer(*pair) for pair in zip(layers, attentions, strict=True)]
        self._last_norm, self._scores = _lean(model.reformer.encoder.layer_norm), _lean(model.lm_head.decoder)

    def select_texts(self, rows: Tensor) -> None:
        """Continue only these texts, int64 (B,); one may occur more than once."""
        self.num_texts, self._described = len(rows), None
        for attention in self._attentions:
            attention.choose(rows)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return logits (B, vocabulary) after one more token (B, 1) per text. Raises ValueError beyond the model's
        positions."""
        self.length += 1
        if self.length > self._padded:
            self._padded, most = (
                lengths.evaluation_length(self._config, self.length),
                schema.max_positions(self._config),
            )
            if self._padded > most:
                raise ValueError(f"{self.length} positions, padded to {self._padded}, are more than the model's {most}")
        if any([attention.begin_hashing(self._padded) for attention in self._attentions]):
            for attention in self._attentions:  # all have as much room
                attention.take_room()
        if tokens.dtype == paddle.int64 and compiled.suits(self._words) and _has_plain_layers(self._model):
            return self._compiled(tokens)
        self._described = None
        return self._composed(tokens)

    def _composed(self, tokens: Tensor) -> Tensor:
        """By Paddle's operations."""
        attention_stream = hidden_stream = F.embedding(tokens, self._words) + self._position(self.length - 1)
        for layer in self._layers:
            attention_stream, hidden_stream = layer(attention_stream, hidden_stream, self._padded)
        normed = self._last_norm(paddle.concat([attention_stream, hidden_stream], axis=-1))
        return self._scores(normed).squeeze(1)

    def _compiled(self, tokens: Tensor) -> Tensor:
        """By one loop, which keeps keys, values and buckets in place, with room for later ones."""
        changed = [attention.make_room() for attention in self._attentions]
        changed += [attention.put_buckets() for attention in self._attentions]
        if any(changed) or self._described is None:
            self._described = compiled.DecoderLayers(layer.described() for layer in self._layers)
        for attention in self._attentions:
            attention.length += 1
        norm, scores = self._model.reformer.encoder.layer_norm, self._model.lm_head.decoder
        return compiled.reversible_step(
            tokens,
            self._words,
            self._position(self.length - 1),
            self._described,
            (norm.weight, norm.bias),
            (scores.weight, scores.bias),
            self.length - 1,
            self._padded,
            norm._epsilon,
            KEY_NORM_EPSILON,
            SELF_MASKED,
        )[0]


def _has_plain_layers(model: Port) -> bool:
    """Whether its layers are those that the loop computes, in their weights' precision, without gradients."""
    return (
        model.adapter is None
        and model.config.hidden_act == "relu"
        and not (is_lowered("linear") or is_lowered("attention") or paddle.is_grad_enabled())
    )
