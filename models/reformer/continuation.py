"""Reformer's logits after each further token of texts, computed from cached keys and values.

Each position is computed once, when it is the last, and then cached, as with the cache of ``transformers``. The last
position attends to the same positions as in :mod:`.attention`: its chunk of the sorted positions and the chunks before
it, in the ring of all hash rounds, without padding. Local attention therefore gives the same result as a computation of
the whole text, and so does an LSH layer without a later attention layer. In the whole text, a new position also moves
the chunks behind its bucket, so that earlier positions attend to others than before. Only layers above an LSH layer
depend on this.

Plain layers in float32 on a CPU are computed by one compiled loop, because a token's time is overhead and not
arithmetic: 400 tokens of two layers take 0.3 s instead of 0.9 (two cores of an Intel Xeon). The gate's ``decoding/``
compares the loop in float32, and Paddle's operations in float64.

The cache of ``transformers`` 4.55 attends to other positions. It fills the last chunk, and the chunks before the first
chunk, with positions of other buckets. It draws rotations for each token if ``hash_seed`` is not set. And it gives all
texts of a batch, and so all beams, the keys of the first text.

Letters in the shapes: B number of texts, T positions so far, H heads, D size of a head, R hash rounds, K positions that
a chunk attends to, N = R * K positions that the last position attends to.
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
from models.operations.precision import is_cast_to_bfloat16
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


def _evaluation_function(layer: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that computes a layer in evaluation, without hooks and gradients if the layer is a plain layer.

    For one position, hooks and gradients take longer than the arithmetic.
    """
    if type(layer) is Linear and not is_cast_to_bfloat16("linear"):
        # F.linear would look up flags, which takes as long as the product.
        weight, bias = layer.weight, layer.bias
        return (lambda x: paddle.matmul(x, weight)) if bias is None else (lambda x: paddle.matmul(x, weight) + bias)
    # Paddle's own layer norm rounds epsilon to float32.
    if type(layer) is LayerNorm and layer.weight.dtype != paddle.float64:
        shape, epsilon = layer.weight.shape, layer._epsilon
        return partial(F.layer_norm, normalized_shape=shape, weight=layer.weight, bias=layer.bias, epsilon=epsilon)
    return layer.forward


class _CachedAttention:
    """An attention at one more position of texts, which caches the keys and values of all positions.

    Args:
        self_attention: attention layer in evaluation mode.
        hidden_states: input of the attention at the positions so far, (B, T, hidden).

    Attributes:
        length: number of positions so far, T.
        keys: keys of all positions, (B, H, T, D), or with room for later positions.
        values: values of all positions, of the same shape.
    """

    #: Axis of the positions in each cached attribute. An attribute is None as long as nothing is cached.
    CACHE_AXES: ClassVar[dict[str, int]] = {"keys": 2, "values": 2}

    #: Weights of query, key (None if the query is the key) and value.
    weights: tuple[Tensor, Tensor | None, Tensor]

    def __init__(self, self_attention: ChunkedSelfAttention, hidden_states: Tensor) -> None:
        self.layer = self_attention
        self.num_heads, self.head_size = self_attention.num_attention_heads, self_attention.attention_head_size
        self.value = _evaluation_function(self_attention.value)
        self.length = hidden_states.shape[1]
        _, self.keys, self.values = self.project(hidden_states)
        self.dtype = str(self.keys.dtype).rpartition(".")[2]

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (B, H, T, D) each, of an input (B, T, hidden)."""
        raise NotImplementedError

    def find_attended(self, query: Tensor, padded_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions that the last position attends to, and the bias of their scores.

        A hash round contributes to the result in proportion to its normalizer. All rounds are therefore one softmax.

        Args:
            query: query of the last position, (B, H, 1, D).
            padded_length: number of positions of the padded texts.

        Returns:
            The positions, int64 (B, H, N), and the bias of the same shape, in the dtype of the keys.
        """
        raise NotImplementedError

    def __call__(self, hidden_states: Tensor, padded_length: int) -> Tensor:
        """Return the merged heads at one more position, (B, 1, H*D), of an input (B, 1, hidden)."""
        self.remove_room()
        query, key, value = self.project(hidden_states)
        self.keys, self.values = paddle.concat([self.keys, key], 2), paddle.concat([self.values, value], 2)
        self.length += 1
        positions, bias = self.find_attended(query, padded_length)
        return self.attend(query, positions, bias).reshape([-1, 1, self.num_heads * self.head_size])

    def attend(self, query: Tensor, positions: np.ndarray, score_bias: np.ndarray) -> Tensor:
        """Return the attention output of the last position, (B, H, 1, D).

        Args:
            query: query of the last position, (B, H, 1, D).
            positions: positions that it attends to, int64 (B, H, N).
            score_bias: bias of their scores, (B, H, N).
        """
        batch, heads, count = positions.shape
        first = np.arange(batch * heads).reshape([batch, heads, 1]) * self.length
        rows = paddle.to_tensor((first + positions).reshape(-1))
        key, value = (
            paddle.gather(cache.reshape([-1, self.head_size]), rows).reshape([batch, heads, count, self.head_size])
            for cache in (self.keys, self.values)
        )
        scores = product(query, key, transpose_y=True) + paddle.to_tensor(score_bias[:, :, None])
        return product(F.softmax(scores), value)

    def begin_hashing(self, padded_length: int) -> bool:
        """Hash all positions as soon as texts have several chunks, and return whether this has happened now."""
        return False

    def describe_for_loop(self, parameters: list[Tensor | None]) -> compiled.ReversibleLayer:
        """Return the layer's input of the compiled loop.

        Args:
            parameters: parameters of the layer in the order of the loop.
        """
        layer = self.layer
        hashing = None, None, None, None, 0, 1
        return compiled.ReversibleLayer(
            self.keys, self.values, *hashing, layer.chunk_length, layer.num_chunks_before, parameters
        )

    def write_known_buckets(self) -> bool:
        """Write the next position's buckets into the cache if the gate has set them, and return whether it has."""
        return False

    def reserve_room(self) -> bool:
        """Make room for at least one more position, and return whether the cached tensors are new tensors now."""
        if self.keys.shape[2] > self.length:
            return False
        self._replace_cache(lambda cache, axis: paddle.concat([cache, _empty_room(cache, axis)], axis))
        return True

    def remove_room(self) -> None:
        """Remove the room for later positions from the cached tensors."""
        if self.keys.shape[2] > self.length:
            self._replace_cache(lambda cache, axis: paddle.slice(cache, [axis], [0], [self.length]))

    def select_texts(self, rows: Tensor) -> None:
        """Keep only the cache of the texts with the given row numbers, int64 (B,), which may repeat."""
        self._replace_cache(lambda cache, axis: paddle.index_select(cache, rows))

    def _replace_cache(self, change: Callable[[Tensor, int], Tensor]) -> None:
        """Replace each cached tensor by the result of a function of the tensor and its axis of positions."""
        for name, axis in self.CACHE_AXES.items():
            if (cache := getattr(self, name)) is not None:
                setattr(self, name, change(cache, axis))

    def split_heads(self, projection: Tensor) -> Tensor:
        """Split the last axis into heads: (B, T, H*D) -> (B, H, T, D)."""
        batch, length, _ = projection.shape
        if length == 1:
            return projection.reshape([batch, self.num_heads, 1, self.head_size])
        return projection.reshape([batch, length, self.num_heads, self.head_size]).transpose([0, 2, 1, 3])

    def attended_slots(self, slots: np.ndarray, num_slots: int) -> np.ndarray:
        """Return the slots that the chunk of each slot attends to, (..., K).

        Args:
            slots: indices in the sorted sequence, (...).
            num_slots: length of the sorted sequence, which is a ring.
        """
        size = min(self.layer.chunk_length, num_slots)
        before = self.layer.num_chunks_before if size < num_slots else 0
        chunks = (slots[..., None] // size + np.arange(-before, 1)) % (num_slots // size)
        return (chunks[..., None] * size + np.arange(size)).reshape([*slots.shape, -1])


class _CachedLocalAttention(_CachedAttention):
    """A :class:`.attention.LocalSelfAttention` at one more position."""

    def __init__(self, self_attention: LocalSelfAttention, hidden_states: Tensor) -> None:
        self.query, self.key = _evaluation_function(self_attention.query), _evaluation_function(self_attention.key)
        self.weights = self_attention.query.weight, self_attention.key.weight, self_attention.value.weight
        super().__init__(self_attention, hidden_states)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query, the scaled key and the value of the hidden states, each split into heads."""
        query = self.split_heads(self.query(hidden_states))
        key = self.split_heads(self.key(hidden_states))
        value = self.split_heads(self.value(hidden_states))
        return query, key / math.sqrt(self.head_size), value

    def find_attended(self, query: Tensor, padded_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions that the last token attends to, and the bias of their scores, which is 0.

        Args:
            query: query of the last token, (B, H, 1, D).
            padded_length: number of positions of the padded texts.
        """
        positions = self.attended_slots(np.array(self.length - 1), padded_length)
        positions = np.tile(positions[positions < self.length], [*query.shape[:2], 1])
        return positions, np.zeros(positions.shape, self.dtype)


class _CachedLSHAttention(_CachedAttention):
    """An :class:`.attention.LSHSelfAttention` at one more position.

    Attributes:
        buckets: buckets of all positions, int64 (B, H, R, T); None as long as texts have a single chunk.
        order: positions of each hash round in sorted order, int64 (B, H, R, T), or None likewise.
        rotations: rotations that hash all positions, drawn once; None as long as texts have a single chunk.
    """

    CACHE_AXES: ClassVar[dict[str, int]] = {**_CachedAttention.CACHE_AXES, "buckets": 3, "order": 3}

    def __init__(self, self_attention: LSHSelfAttention, hidden_states: Tensor) -> None:
        self.lsh_layer, self.query_key = self_attention, _evaluation_function(self_attention.query_key)
        self.weights = self_attention.query_key.weight, None, self_attention.value.weight
        self.buckets: Tensor | None = None
        self.order: Tensor | None = None
        self.rotations: Tensor | None = None
        super().__init__(self_attention, hidden_states)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the shared query, the key (the normalized query) and the value, each split into heads."""
        query = self.split_heads(self.query_key(hidden_states))
        mean_square = (query * query).mean(-1, keepdim=True)
        key = query * (paddle.rsqrt(mean_square + KEY_NORM_EPSILON) / math.sqrt(self.head_size))
        return query, key, self.split_heads(self.value(hidden_states))

    def begin_hashing(self, padded_length: int) -> bool:
        """Start to hash when the sequence exceeds one chunk; return whether hashing starts now."""
        if self.buckets is not None or padded_length <= self.layer.chunk_length:
            return False
        self.remove_room()
        self.rotations = self.lsh_layer.draw_rotations(padded_length, self.keys.dtype)
        # A key is a scaled query, so it has the bucket of the query.
        self.order = paddle.argsort(self.append_buckets(self.keys), stable=True)
        return True

    def describe_for_loop(self, parameters: list[Tensor | None]) -> compiled.ReversibleLayer:
        """Return the layer's tensors and settings for the compiled decoder loop, with its LSH buckets once it hashes.

        Args:
            parameters: parameters of the layer; None for a missing bias.
        """
        layer_without_hashing = super().describe_for_loop(parameters)
        if self.rotations is None:
            return layer_without_hashing
        return layer_without_hashing._replace(
            buckets=self.buckets,
            order=self.order,
            rotations=self.rotations,
            factors=paddle.to_tensor(self.lsh_layer.bucket_factors(self.length), "int64"),
            axes=0 if self._has_known_buckets else self.rotations.shape[-1],
            rounds=self.lsh_layer.num_hashes,
        )

    @property
    def _has_known_buckets(self) -> bool:
        """Whether the gate has replaced ``hash_vectors`` by a function that returns the reference's buckets."""
        return "hash_vectors" in vars(self.lsh_layer)

    def write_known_buckets(self) -> bool:
        """Write the last token's buckets into space that is already allocated; return whether this was possible."""
        if self.buckets is None or not self._has_known_buckets:
            return False
        last_buckets = self._hash(self.keys[:, :, self.length - 1 : self.length])
        parts = [self.buckets[..., : self.length], last_buckets, self.buckets[..., self.length + 1 :]]
        self.buckets = paddle.concat(parts, 3)
        return True

    def append_buckets(self, vectors: Tensor) -> Tensor:
        """Append the buckets of further positions to the cache, and return the buckets of all positions.

        Args:
            vectors: queries or keys of the further positions, (B, H, number of positions, D).

        Returns:
            The buckets of all positions, int64 (B, H, R, T).
        """
        buckets = self._hash(vectors)
        self.buckets = buckets if self.buckets is None else paddle.concat([self.buckets, buckets], 3)
        return self.buckets

    def _hash(self, vectors: Tensor) -> Tensor:
        """Return the buckets, int64 (B, H, R, T), of queries or keys (B, H, T, D)."""
        flat_vectors = vectors.reshape([-1, self.head_size])
        buckets = self.lsh_layer.hash_vectors(flat_vectors, self.rotations, len(vectors), None)
        return buckets.reshape([len(vectors), self.num_heads, self.lsh_layer.num_hashes, -1])

    def find_attended(self, query: Tensor, padded_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions that the last token attends to in the hash rounds, and the bias of their scores.

        Args:
            query: query of the last token, (B, H, 1, D).
            padded_length: number of positions of the padded texts.
        """
        if self.buckets is None:
            order = np.broadcast_to(np.arange(self.length), [*query.shape[:2], 1, self.length])
            return self._positions_in_rounds(query, order, order * 0, order)
        buckets = self.append_buckets(query).numpy()
        order = np.argsort(buckets, axis=-1, kind="stable")
        self.order = paddle.to_tensor(order)
        slots = (buckets <= buckets[..., -1:]).sum(-1) - 1  # the last position is the last in its bucket
        rounds = buckets.shape[2]
        slots = self.attended_slots(slots + np.arange(rounds) * padded_length, rounds * padded_length)
        return self._positions_in_rounds(query, order, slots // padded_length, slots % padded_length)

    def _positions_in_rounds(
        self, query: Tensor, order: np.ndarray, rounds: np.ndarray, slots: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions in slots of the sorted rounds, and the bias of their scores.

        Args:
            query: query of the last position, (B, H, 1, D).
            order: positions of each round in sorted order, int64 (B, H, R, T).
            rounds: hash round of each attended slot, int64 (B, H, R, K).
            slots: index of each attended slot in its round, int64 (B, H, R, K); from T on, slots have padding.
        """
        batch, heads, num_rounds, length = order.shape
        row = np.arange(batch * heads).reshape([batch, heads, 1, 1])
        positions = order.reshape(-1)[(row * num_rounds + rounds) * length + np.minimum(slots, length - 1)]
        # In the whole text, these values replace the scores. Here they are added, and their exp is 0 in either case.
        self_bias = (positions == length - 1) * self_masked_value(query)
        bias = np.where(slots < length, self_bias, masked_value(query))
        return positions.reshape([batch, heads, -1]), bias.reshape([batch, heads, -1]).astype(self.dtype)


def _empty_room(cache: Tensor, axis: int) -> Tensor:
    """Return an empty tensor with room for later positions, to be appended to a cached tensor along the axis."""
    return paddle.empty([*cache.shape[:axis], compiled.CACHE_GROWTH, *cache.shape[axis + 1 :]], cache.dtype)


class _DecoderLayer:
    """A :class:`.modeling.ReformerLayer` in evaluation, at one more position.

    Args:
        layer: layer of the model.
        attention: attention of the layer with its cache.
    """

    def __init__(self, layer: nn.Layer, attention: _CachedAttention) -> None:
        self.layer, self.attention = layer, attention
        feed_forward = layer.feed_forward
        self.attention_norm = _evaluation_function(layer.attention.layer_norm)
        self.feed_forward_norm = _evaluation_function(feed_forward.layer_norm)
        self.output = _evaluation_function(layer.attention.output.dense)
        self.inner = _evaluation_function(feed_forward.dense.dense)
        self.outer = _evaluation_function(feed_forward.output.dense)
        self.activation = _evaluation_function(feed_forward.dense.act_fn)

    def __call__(self, attention_stream: Tensor, hidden_stream: Tensor, padded_length: int) -> tuple[Tensor, Tensor]:
        """Return both streams after this layer, (B, 1, hidden) each.

        Args:
            attention_stream: attention stream before this layer, (B, 1, hidden).
            hidden_stream: hidden stream before this layer, (B, 1, hidden).
            padded_length: number of positions of the padded texts.
        """
        attention_output = self.attention(self.attention_norm(hidden_stream), padded_length)
        attention_stream = attention_stream + self.output(attention_output)
        inner_states = self.activation(self.inner(self.feed_forward_norm(attention_stream)))
        return attention_stream, hidden_stream + self.outer(inner_states)

    def describe_for_loop(self) -> compiled.ReversibleLayer:
        """Return the layer's input of the compiled loop, if it is a plain layer."""
        attention, feed_forward = self.layer.attention, self.layer.feed_forward
        norm = attention.layer_norm
        modules = attention.output.dense, feed_forward.layer_norm, feed_forward.dense.dense, feed_forward.output.dense
        parameters = [norm.weight, norm.bias, *self.attention.weights]
        parameters += [parameter for module in modules for parameter in (module.weight, module.bias)]
        contiguous = [parameter if parameter is None else parameter.contiguous() for parameter in parameters]
        return self.attention.describe_for_loop(contiguous)


class Continuation:
    """Texts that are continued token by token, with the caches of all attention layers.

    Args:
        port_model: :class:`.modeling.ReformerModelWithLMHead` in evaluation mode.
        input_ids: prefixes of the texts, int64 (B, T).

    Attributes:
        num_texts: number of texts, B.
        length: number of tokens of each text so far.
        logits: logits after the prefixes, (B, vocabulary).
    """

    def __init__(self, port_model: Port, input_ids: Tensor) -> None:
        self.num_texts, self.length = input_ids.shape
        self._config = vars(port_model.config)
        attentions: list[_CachedAttention] = []

        def add_attention(self_attention: ChunkedSelfAttention, inputs: tuple[Tensor, ...]) -> None:
            kind: Any = _CachedLSHAttention if isinstance(self_attention, LSHSelfAttention) else _CachedLocalAttention
            attentions.append(kind(self_attention, inputs[0][:, : self.length]))

        layers = list(port_model.reformer.encoder.layers)
        hooks = [layer.attention.self_attention.register_forward_pre_hook(add_attention) for layer in layers]
        self._padded_length = lengths.evaluation_length(self._config, self.length)
        padding = [0, 0, 0, self._padded_length - self.length]
        ids = F.pad(input_ids, padding, value=port_model.config.pad_token_id or 0, pad_from_left_axis=True)
        attention_mask = F.pad(paddle.ones_like(input_ids), padding, pad_from_left_axis=True)
        try:
            self.logits = port_model(ids, attention_mask).logits[:, self.length - 1]
        finally:
            for hook in hooks:
                hook.remove()
        self._model = port_model
        # The input of the compiled loop, as long as the cached tensors are the same; None if it must be rebuilt.
        self._loop_layers: compiled.DecoderLayers | None = None
        self._word_embeddings = port_model.reformer.embeddings.word_embeddings.weight
        self._position_embedding = port_model.reformer.embeddings.position_embeddings.of_position
        self._attentions = attentions
        self._layers = [_DecoderLayer(*pair) for pair in zip(layers, attentions, strict=True)]
        self._last_norm = _evaluation_function(port_model.reformer.encoder.layer_norm)
        self._output_layer = _evaluation_function(port_model.lm_head.decoder)

    def select_texts(self, rows: Tensor) -> None:
        """Continue only the texts with the given row numbers, int64 (B,), which may repeat."""
        self.num_texts, self._loop_layers = len(rows), None
        for attention in self._attentions:
            attention.select_texts(rows)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the logits after one more token of each text, (B, vocabulary).

        Args:
            tokens: next token of each text, int64 (B, 1).

        Raises:
            ValueError: the texts have as many tokens as the model has positions.
        """
        self.length += 1
        if self.length > self._padded_length:
            self._padded_length = lengths.evaluation_length(self._config, self.length)
            limit = schema.max_positions(self._config)
            if self._padded_length > limit:
                raise ValueError(
                    f"{self.length} positions, padded to {self._padded_length}, are more than the model's {limit}"
                )
        if any([attention.begin_hashing(self._padded_length) for attention in self._attentions]):
            for attention in self._attentions:  # the loop needs the same room in all layers
                attention.remove_room()
        is_compiled = compiled.supports_compiled(self._word_embeddings) and _has_plain_layers(self._model)
        if tokens.dtype == paddle.int64 and is_compiled:
            return self._compute_by_loop(tokens)
        self._loop_layers = None
        return self._compute_by_layers(tokens)

    def _compute_by_layers(self, tokens: Tensor) -> Tensor:
        """Return the logits after the tokens, (B, vocabulary), by Paddle's operations."""
        embeddings = F.embedding(tokens, self._word_embeddings) + self._position_embedding(self.length - 1)
        attention_stream = hidden_stream = embeddings
        for layer in self._layers:
            attention_stream, hidden_stream = layer(attention_stream, hidden_stream, self._padded_length)
        hidden_states = self._last_norm(paddle.concat([attention_stream, hidden_stream], axis=-1))
        return self._output_layer(hidden_states).squeeze(1)

    def _compute_by_loop(self, tokens: Tensor) -> Tensor:
        """Return the logits after the tokens, (B, vocabulary), by one compiled loop.

        The loop writes new keys, values and buckets into the cached tensors, which have room for later positions.
        """
        changes = [attention.reserve_room() for attention in self._attentions]
        changes += [attention.write_known_buckets() for attention in self._attentions]
        if any(changes) or self._loop_layers is None:
            self._loop_layers = compiled.DecoderLayers(layer.describe_for_loop() for layer in self._layers)
        for attention in self._attentions:
            attention.length += 1
        norm, output_layer = self._model.reformer.encoder.layer_norm, self._model.lm_head.decoder
        return compiled.reversible_step(
            tokens,
            self._word_embeddings,
            self._position_embedding(self.length - 1),
            self._loop_layers,
            (norm.weight, norm.bias),
            (output_layer.weight, output_layer.bias),
            self.length - 1,
            self._padded_length,
            norm._epsilon,
            KEY_NORM_EPSILON,
            SELF_MASKED,
        )[0]


def _has_plain_layers(port_model: Port) -> bool:
    """Return whether the compiled loop can compute the layers: no adapter, gradients or casts to bfloat16, and ReLU."""
    return (
        port_model.adapter is None
        and port_model.config.hidden_act == "relu"
        and not (is_cast_to_bfloat16("linear") or is_cast_to_bfloat16("attention") or paddle.is_grad_enabled())
    )
