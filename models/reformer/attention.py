"""Reformer's two kinds of self-attention: local (neighboring chunks) and LSH (buckets of similar vectors).

Kitaev, Kaiser, Levskaya 2020, "Reformer: The Efficient Transformer", section 2. Both split the sequence into chunks,
and each chunk attends to itself and its neighbors. LSH attention sorts the positions by bucket first.

Letters in the shape comments: B batch, T positions, H heads, D size of a head, R hash rounds, n chunks, C positions
in a chunk, K = C * (1 + chunks before + chunks after) positions that a chunk attends to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle
from paddle import Tensor, nn

from models.operations import ops
from models.operations.compiled import Masks, chunk_attention
from models.operations.ops import Linear, masked_softmax, nearest_axes, product, softmax_over, unit_mean_square
from models.operations.randomness import draw_keep_mask, normal
from models.operations.rows import Order, adjacent_chunks, batch_size, heads_first, reorder
from models.operations.trace import at, is_one_operation
from models.reformer.config import ReformerConfig
from models.reformer.schema import num_buckets

#: Value of a masked score; the smaller value is for float16, whose largest number is 65504.
MASKED, MASKED_FLOAT16 = -1e9, -1e4
#: Value of the score of a position for itself (section 2, "Causal masking for shared-QK attention"). It is far above
#: MASKED, so that a position attends to itself if all other positions are masked.
SELF_MASKED, SELF_MASKED_FLOAT16 = -1e5, -1e3
#: Epsilon, added to the mean square of a key before the square root.
KEY_NORM_EPSILON = 1e-6


def masked_value(scores: Tensor) -> float:
    """Return the replacement for scores of padding or future positions, in the scores' precision."""
    return MASKED_FLOAT16 if scores.dtype == paddle.float16 else MASKED


def self_masked_value(scores: Tensor) -> float:
    """Return the replacement for the score of a position for itself, in the scores' precision."""
    return SELF_MASKED_FLOAT16 if scores.dtype == paddle.float16 else SELF_MASKED


def compare_positions(positions: Tensor, key_positions: Tensor, compare: Callable[..., Tensor]) -> Tensor:
    """Return the comparison of every position with all positions that its chunk attends to, bool (., n, C, K).

    Both sides are expanded, because Paddle's comparison is four times slower if it broadcasts.

    Args:
        positions: positions of each chunk, (., n, C).
        key_positions: positions that each chunk attends to, (., n, K).
        compare: elementwise comparison.
    """
    shape = [*positions.shape, key_positions.shape[-1]]
    queries, keys = positions.unsqueeze(3).expand(shape), key_positions.unsqueeze(2).expand(shape)
    return compare(queries.contiguous(), keys.contiguous())


class ChunkedSelfAttention(nn.Layer):
    """Base class of both kinds of attention: splits and merges heads, and attends between adjacent chunks.

    Args:
        config: configuration of the model.
        kind: ``local`` or ``lsh``, the prefix of the configuration's keys.
    """

    #: Whether a position attends to itself only if all other positions are masked.
    hides_itself = False

    def __init__(self, config: ReformerConfig, kind: str) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.attention_head_size
        self.is_decoder = config.is_decoder
        self.chunk_length = config[f"{kind}_attn_chunk_length"]
        self.num_chunks_before = config[f"{kind}_num_chunks_before"]
        self.num_chunks_after = config[f"{kind}_num_chunks_after"]
        self.dropout = config[f"{kind}_attention_probs_dropout_prob"]

    def make_projection(self, config: ReformerConfig) -> Linear:
        """Return a linear layer without bias from the hidden size to all heads."""
        return Linear(config.hidden_size, self.num_attention_heads * self.attention_head_size, bias_attr=False)

    def split_heads(self, projection: Tensor) -> Tensor:
        """Split heads: (B, T, H*D) -> (B*H*T, D), with rows sorted by batch, head and position."""
        order = heads_first(batch_size(projection), projection.shape[1], self.num_attention_heads)
        return at("heads", reorder(projection.reshape([-1, self.attention_head_size]), order))

    def merge_heads(self, rows: Tensor, num_texts: int, length: int) -> Tensor:
        """Merge heads: (B*H*T, D) -> (B, T, H*D).

        Args:
            rows: vectors of all heads, (B*H*T, D).
            num_texts: number of texts, B.
            length: number of positions, T.
        """
        order = heads_first(num_texts, length, self.num_attention_heads).invert()
        return reorder(rows, order).reshape([-1, length, self.num_attention_heads * self.attention_head_size])

    def neighbor_indices(self, num_chunks: int) -> Tensor:
        """Return the indices of the chunks that each chunk attends to, int64 (n, K / C).

        A single chunk is the whole sequence and has no neighbors.
        """
        before, after = (self.num_chunks_before, self.num_chunks_after) if num_chunks > 1 else (0, 0)
        return adjacent_chunks(1, num_chunks, before, after).index.reshape([num_chunks, -1])

    def concat_neighbors(self, chunks: Tensor) -> Tensor:
        """Concatenate each chunk with its neighbors: (B*H, n, C, ...) -> (B*H, n, K, ...).

        A single chunk is the whole sequence and has no neighbors.
        """
        _, count, size, *rest = chunks.shape
        if count == 1 or self.num_chunks_before == self.num_chunks_after == 0:
            return chunks
        order = adjacent_chunks(batch_size(chunks), count, self.num_chunks_before, self.num_chunks_after)
        rows = chunks.reshape([-1, size * math.prod(rest)])
        num_keys = size * (self.num_chunks_before + 1 + self.num_chunks_after)
        return at("adjacent", reorder(rows, order).reshape([-1, count, num_keys, *rest]))

    def mask_per_head(self, attention_mask: Tensor) -> Tensor:
        """Repeat the attention mask for each head: (B, T) -> bool (B*H, T)."""
        batch, length = attention_mask.shape
        mask = attention_mask.astype("bool").unsqueeze(1)
        return mask.expand([batch, self.num_attention_heads, length]).reshape([-1, length])

    def draw_keep_mask(self, num_texts: int, num_chunks: int, *sizes: int) -> Tensor | None:
        """Draw which attention probabilities dropout keeps, bool (B*H, n, C, K); None if it keeps all.

        The axes of the random draw are B, H, n (only for several chunks), C and K.
        """
        axes = [num_texts, self.num_attention_heads, *([num_chunks] if num_chunks > 1 else []), *sizes]
        keep_mask = draw_keep_mask(self.dropout, self.training, axes)
        return None if keep_mask is None else keep_mask.reshape([-1, num_chunks, *sizes])

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None,
        token_mask: Tensor | None,
        num_texts: int,
        with_normalizer: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend between adjacent chunks.

        Args:
            query: queries, (B*H, n, C, D).
            key: keys, (B*H, n, C, D).
            value: values, (B*H, n, C, D).
            positions: text position of every row, int64 (B*H or 1, n, C); None if no mask needs it.
            token_mask: whether a row is a token and not padding, bool (B*H, n, C); None without padding.
            num_texts: number of texts, B.
            with_normalizer: whether the log of the normalizers is returned.

        Returns:
            The attention output, (B*H, n, C, D), and the log of the normalizer of each row, (B*H, n, C, 1), or None.
        """
        num_rows, num_chunks, size, _ = query.shape  # B*H, n, C
        if is_one_operation(query, key, value, loop="attention"):
            neighbors = self.neighbor_indices(num_chunks)
            masks = Masks(
                neighbors,
                positions if positions is None else positions.expand([num_rows, num_chunks, size]),
                token_mask,
                self.is_decoder,
                self.hides_itself,
                masked_value(query),
                self_masked_value(query),
                self.draw_keep_mask(num_texts, num_chunks, size, size * neighbors.shape[1]),
                self.dropout,
            )
            context, normalizer = chunk_attention(query, key, value, masks, with_normalizer)
        else:
            key = self.concat_neighbors(key)
            score_masks = self.score_masks(positions, token_mask, query)
            # The scores, (B*H, n, C, K), are the largest tensors here, so no variable keeps them longer than needed.
            weights = masked_softmax(at("scores", product(query, key, transpose_y=True)), score_masks, with_normalizer)
            probabilities, normalizer = weights if isinstance(weights, tuple) else (weights, None)
            keep_mask = self.draw_keep_mask(num_texts, *probabilities.shape[1:])
            probabilities = at("probabilities", probabilities)
            probabilities = (
                probabilities if keep_mask is None else ops.keep_masked(probabilities, keep_mask, self.dropout)
            )
            context = product(at("dropped", probabilities), self.concat_neighbors(value))
        if normalizer is not None:
            normalizer = at("normalizer", normalizer)
        return at("context", context), normalizer

    def score_masks(
        self, positions: Tensor | None, token_mask: Tensor | None, scores: Tensor
    ) -> list[tuple[Tensor, float]]:
        """Return the masks of the scores, each with the value that replaces scores whose mask is False.

        Args:
            positions: text position of every row, int64 (B*H or 1, n, C); None if no mask needs it.
            token_mask: whether a row is a token and not padding, bool (B*H, n, C); None without padding.
            scores: tensor with the dtype of the scores.
        """
        mask = self.padding_and_causal_mask(positions, token_mask)
        masks = [] if mask is None else [(mask, masked_value(scores))]
        if self.hides_itself and positions is not None:
            is_other = compare_positions(positions, self.concat_neighbors(positions), paddle.not_equal)
            masks.append((is_other, self_masked_value(scores)))
        return masks

    def padding_and_causal_mask(self, positions: Tensor | None, token_mask: Tensor | None) -> Tensor | None:
        """Return the mask of padding and causality, bool, broadcastable to (B*H, n, C, K); None if all scores count.

        Args:
            positions: position of each query and key; None if they are in order.
            token_mask: bool mask of the tokens that are not padding; None without padding.
        """
        mask = None if token_mask is None else self.concat_neighbors(token_mask).unsqueeze(2)  # (B*H, n, 1, K)
        if self.is_decoder and positions is not None:
            causal_mask = compare_positions(positions, self.concat_neighbors(positions), paddle.greater_equal)
            mask = causal_mask if mask is None else paddle.logical_and(causal_mask, mask)
        return mask


class LocalSelfAttention(ChunkedSelfAttention):
    """Attention within a chunk and its neighbors in the order of the text."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config, "local")
        self.query = self.make_projection(config)
        self.key = self.make_projection(config)
        self.value = self.make_projection(config)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the output of the attention, before the output layer.

        Args:
            hidden_states: input, (B, T, hidden); T is at most a chunk, or a multiple of the chunk length.
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.

        Returns:
            The merged heads, (B, T, H*D).
        """
        batch, length = batch_size(hidden_states), hidden_states.shape[1]
        chunk = min(self.chunk_length, length)
        chunks = [-1, length // chunk, chunk, self.attention_head_size]
        query = self.split_heads(self.query(hidden_states)).reshape(chunks)  # (B*H, n, C, D)
        key = self.split_heads(self.key(hidden_states)).reshape(chunks)
        key = at("key", key / math.sqrt(self.attention_head_size))
        value = self.split_heads(self.value(hidden_states)).reshape(chunks)
        token_mask = None if attention_mask is None else self.mask_per_head(attention_mask).reshape(chunks[:-1])
        positions = paddle.arange(length).reshape([1, *chunks[1:-1]]) if self.is_decoder else None
        context, _ = self.attend(query, key, value, positions, token_mask, batch)
        return self.merge_heads(context.reshape([-1, self.attention_head_size]), batch, length)


class LSHSelfAttention(ChunkedSelfAttention):
    """Attention among positions that a random rotation hashes into the same bucket; queries serve as keys."""

    hides_itself = True

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config, "lsh")
        self.config = config
        self.num_hashes = config.num_hashes
        self.query_key = self.make_projection(config)
        self.value = self.make_projection(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        buckets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the attention, before the output layer, and the buckets.

        Args:
            hidden_states: input, (B, T, hidden); T is at most a chunk, or a multiple of the chunk length.
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            buckets: buckets of an earlier call on the same input, (B, H, R*T); None computes them.

        Returns:
            The merged heads, (B, T, H*D), and the buckets, (B, H, R*T), or None if the sequence is a single chunk.
        """
        batch, length = batch_size(hidden_states), hidden_states.shape[1]
        query_key = self.split_heads(self.query_key(hidden_states))  # (B*H*T, D)
        value = self.split_heads(self.value(hidden_states))
        if length <= self.chunk_length:
            positions = self.single_chunk_positions(batch, length)
            context, _ = self.attend_rows(query_key, value, positions, batch, attention_mask)
            return self.merge_heads(context, batch, length), None
        # Rotations are drawn even if the buckets are known, so that later draws do not change.
        rotations = self.draw_rotations(length, query_key.dtype)
        if buckets is None:
            buckets = self.hash_vectors(query_key.detach(), rotations, batch, attention_mask)
        positions, sort, unsort = self.sort_by_bucket(buckets, length)
        query_key, value = (at("sorted", reorder(rows, sort)) for rows in (query_key, value))  # (B*H*R*T, D)
        context, weight = self.attend_rows(query_key, value, positions, batch, attention_mask)
        context = at("unsorted", reorder(context, unsort))  # (B*H*R*T, D)
        if self.num_hashes > 1:
            rounds = [-1, self.num_hashes, length, self.attention_head_size]
            weight = at("unsorted_normalizer", reorder(weight, unsort)).reshape([-1, self.num_hashes, length, 1])
            share = at("round_weights", softmax_over(weight, axis=1))
            context = at("combined", (context.reshape(rounds) * share).sum(1)).reshape([-1, self.attention_head_size])
        return self.merge_heads(context, batch, length), buckets

    def single_chunk_positions(self, num_texts: int, length: int) -> Tensor:
        """Return the positions of an unsorted sequence with a single chunk, (B*H, 1, T).

        Args:
            num_texts: number of texts, B.
            length: number of positions, T.
        """
        return (paddle.arange(num_texts * self.num_attention_heads * length) % length).reshape([-1, 1, length])

    def attend_rows(
        self,
        query_key: Tensor,
        value: Tensor,
        positions: Tensor,
        num_texts: int,
        attention_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend between adjacent chunks of rows that are already sorted.

        Args:
            query_key: shared queries and keys, (B*H*n*C, D).
            value: values, (B*H*n*C, D).
            positions: text position of every row, (B*H, n, C).
            num_texts: number of texts, B.
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.

        Returns:
            The attention output, (B*H*n*C, D), and with several hash rounds the log of the normalizer of each row,
            (B*H*n*C, 1), which weights the rounds; otherwise None.
        """
        query, value = (rows.reshape([*positions.shape, self.attention_head_size]) for rows in (query_key, value))
        token_mask = None
        if attention_mask is not None:
            rows = self.mask_per_head(attention_mask)
            first = paddle.arange(batch_size(rows)).unsqueeze(1) * rows.shape[1]
            token_mask = paddle.gather(rows.flatten(), (positions.flatten(1) + first).flatten())
            token_mask = token_mask.reshape(positions.shape)
        has_rounds = self.num_hashes > 1
        context, weight = self.attend(query, self.make_key(query), value, positions, token_mask, num_texts, has_rounds)
        return context.reshape([-1, self.attention_head_size]), None if weight is None else weight.reshape([-1, 1])

    def make_key(self, query_key: Tensor) -> Tensor:
        """Return the keys: queries scaled to unit mean square, then by 1/sqrt(D) (section 2, "shared-QK")."""
        return at("key", unit_mean_square(query_key, KEY_NORM_EPSILON, math.sqrt(self.attention_head_size)))

    def bucket_factors(self, length: int) -> list[int]:
        """Return the bucket count, as one number or as factors that are hashed separately.

        If the configuration does not set it, it becomes a power of two near 2 * length / chunk length, with two factors
        if this is large. It is stored in the configuration, so that it is saved with the weights.

        Args:
            length: number of positions, T.
        """
        if self.config.num_buckets is None:
            self.config.num_buckets = num_buckets(self.config, length)
        count = self.config.num_buckets
        return [count] if isinstance(count, int) else list(count)

    def draw_rotations(self, length: int, dtype: paddle.dtype) -> Tensor:
        """Draw a rotation for each head, hash round and bucket factor, (H, D, R, half the sum of the factors)."""
        half = sum(self.bucket_factors(length)) // 2
        shape = [self.num_attention_heads, self.attention_head_size, self.num_hashes, half]
        return normal(shape, _dtype_name(dtype), self.config.hash_seed)

    def hash_vectors(self, vectors: Tensor, rotations: Tensor, num_texts: int, attention_mask: Tensor | None) -> Tensor:
        """Return the bucket of each vector by angular LSH (Andoni et al. 2015).

        The bucket is the nearest axis of a randomly rotated cross-polytope.

        Args:
            vectors: shared queries and keys without gradient, (B*H*T, D).
            rotations: rotations from :meth:`draw_rotations`.
            num_texts: number of texts, B.
            attention_mask: 1 for tokens and 0 for padding, (B, T); padding gets a separate bucket.

        Returns:
            Buckets, int64 (B, H, R*T); the buckets of different rounds do not overlap.
        """
        heads, rounds, size = self.num_attention_heads, self.num_hashes, self.attention_head_size
        length = vectors.shape[0] // (num_texts * heads) if attention_mask is None else attention_mask.shape[1]
        vectors = vectors.reshape([-1, heads, length, size])
        factors = self.bucket_factors(length)
        projections = paddle.matmul(vectors, rotations.reshape([heads, size, -1]))
        projections = projections.reshape([-1, heads, length, rounds, sum(factors) // 2])
        buckets: Any = None
        below, count = 0, 1
        for factor in factors:
            part = projections[..., below : below + factor // 2] if len(factors) > 1 else projections
            own = nearest_axes(part)  # (B, H, T, R)
            buckets = own if buckets is None else buckets + count * own
            below, count = below + factor // 2, count * factor
        # An empty bucket does not change the order. A static graph cannot check for padding, so it always has it.
        if attention_mask is not None and not (paddle.in_dynamic_mode() and bool(attention_mask.astype("bool").all())):
            padding = attention_mask.astype("bool").logical_not().reshape([-1, 1, length, 1])
            buckets = paddle.where(padding, paddle.full([1], count, buckets.dtype), buckets)
            count += 1
        if rounds > 1:
            buckets = (buckets + paddle.arange(rounds) * count).transpose([0, 1, 3, 2])
        return buckets.reshape([-1, heads, rounds * length])

    def sort_by_bucket(self, buckets: Tensor, length: int) -> tuple[Tensor, Order, Order]:
        """Sort all positions by bucket, and within a bucket by position.

        Args:
            buckets: buckets of all rounds, (B, H, R*T).
            length: number of positions, T.

        Returns:
            The text position of every sorted row, (B*H, n, C); the order that sorts rows (B*H*T, D) into
            (B*H*R*T, D); and the inverse order, which restores B, H, R, T.
        """
        buckets = buckets.reshape([-1, buckets.shape[-1]])
        count, rounds_length = batch_size(buckets), buckets.shape[1]
        sorted_from = paddle.argsort(buckets, axis=-1, stable=True)  # (B*H, R*T)
        first = paddle.arange(count).unsqueeze(1) * rounds_length
        forth = (sorted_from + first).flatten()
        back = paddle.scatter(paddle.zeros_like(forth), forth, paddle.arange(count * rounds_length))
        position = sorted_from % length
        rounds = rounds_length // length
        source = (position + paddle.arange(count).unsqueeze(1) * length).flatten()
        by_round = back.reshape([-1, rounds, length]).transpose([1, 0, 2]).reshape([rounds, -1])
        return (
            position.reshape([-1, rounds_length // self.chunk_length, self.chunk_length]),
            Order(source, by_round),
            Order(back, forth.unsqueeze(0)),
        )


def _dtype_name(dtype: paddle.dtype) -> str:
    """Return the name of a dtype without its module: ``paddle.float32`` -> ``float32``."""
    return str(dtype).rsplit(".", 1)[-1]
