"""Random input and true outputs of the compiled loops that decode a single position.

:mod:`.loop_truths` has the other loops, and explains units and the functions ``_draw_NAME`` and ``_exact_NAME``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolkit.parity.measure.loop_truths import (
    LoopCheck,
    Truth,
    _compute_softmax,
    _draw_array,
    _draw_arrays,
    _draw_mask,
    _normalize_rows,
    _round_nothing,
    _to_float64,
)

# -- random input


def _draw_decoder_step(rng, tokens, embedding, places, layers, norm, head, bias, past, epsilon, last_epsilon):
    """Draw the arguments of ``decoder_step``: CTRL's step for one position, with cached keys and values.

    Embeddings have a variance near epsilon, and weights keep the size of their input. The last position is not masked.
    Of the table of positions, only the row of the last position is not 0.
    """
    scale = np.float32(np.sqrt(epsilon))
    place_rows = np.zeros(places, np.float32)
    place_rows[past] = scale * _draw_array(rng, places[1:])
    weights = [[_draw_weight(rng, shape) for shape in shapes] for shapes in layers]
    if bias is not None:
        bias = np.where(_draw_mask(rng, bias), _draw_array(rng, bias), np.finfo(np.float32).min)
    return (
        rng.integers(0, embedding[0], tokens),
        np.float32(4.0 * scale / np.sqrt(embedding[1])) * _draw_array(rng, embedding),
        place_rows,
        weights,
        list(_draw_arrays(rng, *norm)),
        list(_draw_arrays(rng, *head)),
        bias,
        past,
        epsilon,
        last_epsilon,
    )


def _draw_reversible_step(rng, tokens, embedding, place, layers, norm, head, past, *settings):
    """Draw the arguments of ``reversible_step``: Reformer's step for one position, with cached keys and values.

    Embeddings have a variance near epsilon. Earlier positions are sorted by their buckets.
    """
    scale = np.float32(np.sqrt(settings[1]))
    token_rows, place_row = scale * _draw_array(rng, embedding), scale * _draw_array(rng, place)
    states = [_draw_reversible_layer(rng, past, *layer) for layer in layers]
    ends = ([_draw_weight(rng, shape) for shape in shapes] for shapes in (norm, head))
    return rng.integers(0, embedding[0], tokens), token_rows, place_row, states, *ends, past, *settings


def _draw_reversible_layer(rng, past, keys, values, buckets, order, rotations, factors, axes, rounds, *settings):
    """Draw the keys, values, buckets, order, rotations and weights of a layer of ``reversible_step``."""
    *sizes, parameters = settings
    layer = [_draw_array(rng, keys), _draw_array(rng, values), None, None, None, None, axes, rounds, *sizes]
    if buckets is not None:
        layer[5] = np.array([2] * (factors[0] - 1) + [2 * (axes + 1 - factors[0])])
        offsets = np.arange(rounds)[:, None] * layer[5].prod()
        layer[2] = offsets + rng.integers(0, layer[5].prod(), buckets)
        layer[3] = np.zeros(order, np.int64)
        layer[3][..., :past] = np.argsort(layer[2][..., :past], kind="stable")
        layer[4] = _draw_array(rng, rotations)
    return [*layer, [None if shape is None else _draw_weight(rng, shape) for shape in parameters]]


def _draw_weight(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Draw a vector of this shape, or a matrix that keeps the size of its input."""
    return _draw_array(rng, shape) / np.float32(np.sqrt(shape[0] if len(shape) == 2 else 1))


# -- true outputs, in float64. Each intermediate result is a tuple of a tensor and its units, which have the same shape.


def _map_linear(x_and_unit, weight, bias):
    """Return the linear map x W + b with its units, given x with its units.

    The roundings of x are independent of each other.

    Args:
        x_and_unit: input x, (N, inputs), and its units of rounding, of the same shape.
        weight: weight W, (inputs, outputs).
        bias: bias b, (outputs,).
    """
    x, unit = x_and_unit
    return x @ weight + bias, np.sqrt(unit**2 @ weight**2) + np.abs(x) @ np.abs(weight) + np.abs(bias)


def _map_layer_norm(x_and_unit, gain, bias, epsilon):
    """Return the layer norm of x with its units, given x with its units.

    Args:
        x_and_unit: input x, (N, width), and its units of rounding, of the same shape.
        gain: factors of the columns, (width,).
        bias: bias of the columns, (width,).
        epsilon: number added to the variance.
    """
    x, x_unit = x_and_unit
    rows, scale, unit = _normalize_rows(x, epsilon)
    scaled_unit = x_unit * scale
    unit = unit + scaled_unit + scaled_unit.mean(-1, keepdims=True)
    unit = unit + np.abs(rows) * (np.abs(rows) * scaled_unit).mean(-1, keepdims=True)
    return rows * gain + bias, unit * np.abs(gain) + np.abs(bias)


def _attend_positions(query, keys, values, bias, divisor):
    """Return the attention output of one query for each head, (B, H * D), with its units.

    Args:
        query: queries (B, H, D), with their units.
        keys: keys (B, H, T, D), with their units.
        values: values (B, H, T, D), with their units.
        bias: numbers that are added to the scores.
        divisor: number that the scores are divided by.
    """
    (query, query_unit), (keys, key_unit), (values, value_unit) = query, keys, values
    scores = np.einsum("bhd,bhtd->bht", query, keys) / divisor + bias
    score_unit = np.einsum("bhd,bhtd->bht", np.abs(query), np.abs(keys)) / divisor + np.abs(bias)
    score_unit += np.sqrt(np.einsum("bhd,bhtd->bht", query_unit**2, keys**2)) / divisor
    score_unit += np.sqrt(np.einsum("bhd,bhtd->bht", query**2, key_unit**2)) / divisor
    weights, _, _ = _compute_softmax(scores)
    weight_unit = weights * (2.0 + np.where(weights > 0, score_unit, 0.0))
    context = np.einsum("bht,bhtd->bhd", weights, values)
    unit = np.einsum("bht,bhtd->bhd", weight_unit, np.abs(values)) + np.einsum("bht,bhtd->bhd", weights, value_unit)
    unit += np.abs(context) * weight_unit.sum(-1, keepdims=True)
    return context.reshape(len(query), -1), unit.reshape(len(query), -1)


def _apply_feed_forward(context, streams, parameters, epsilon):
    """Return the two residual streams after a layer's attention output and feed-forward, with their units.

    The first is the first stream plus the projected attention output. The second is the second stream plus the
    feed-forward output of the first result. If the second stream is None, the feed-forward output is added to the first
    result.

    Args:
        context: attention output before its projection, with its units.
        streams: the two residual streams with their units; None for a missing second stream.
        parameters: projection, norm and feed-forward of the layer, eight arrays.
        epsilon: epsilon of the norm.
    """
    dense, bias, gain, norm_bias, inner, inner_bias, outer, outer_bias = parameters
    attention = _add_update(streams[0], _map_linear(context, dense, bias))
    hidden_rows, unit = _map_linear(_map_layer_norm(attention, gain, norm_bias, epsilon), inner, inner_bias)
    update = _map_linear((np.maximum(hidden_rows, 0.0), unit), outer, outer_bias)
    return attention, _add_update(streams[1] or attention, update)


def _add_update(stream, update):
    """Return a residual stream plus an update, both given with their units."""
    return stream[0] + update[0], stream[1] + update[1] + np.abs(stream[0])


def _append_position(cache, new, past):
    """Return the cache with a new position, and the part up to this position, each with its units.

    Args:
        cache: cached keys or values, (B, H, T, D).
        new: keys or values of the new position, (B, H, D), with their units.
        past: index of the new position.
    """
    cache, unit = cache.astype(np.float64), np.zeros(cache.shape)
    cache[:, :, past], unit[:, :, past] = new
    return (cache, unit), (cache[:, :, : past + 1], unit[:, :, : past + 1])


def _exact_decoder_step(tokens, embedding, places, layers, norm, head, bias, past, epsilon, last_epsilon):
    """Return the true outputs of ``decoder_step``: scores of the head, then keys and values of each layer."""
    x, place = _to_float64(embedding[tokens.reshape(-1)], places[past])
    x *= np.sqrt(x.shape[1])
    stream, caches = (x + place, np.abs(x) + np.abs(x + place)), []
    for keys, values, *parameters in layers:
        rows, heads, _, depth = keys.shape
        parameters = _to_float64(*parameters)
        norm_rows = _map_layer_norm(stream, parameters[0], parameters[1], epsilon)
        query, key, value = (
            [part.reshape([rows, heads, depth]) for part in _map_linear(norm_rows, *parameters[first : first + 2])]
            for first in (2, 4, 6)
        )
        new_keys, own_keys = _append_position(keys, key, past)
        new_values, own_values = _append_position(values, value, past)
        caches += [new_keys, new_values]
        own_bias = 0.0 if bias is None else bias[:, None]
        context = _attend_positions(query, own_keys, own_values, own_bias, np.sqrt(depth))
        _, stream = _apply_feed_forward(context, (stream, None), parameters[8:], epsilon)
    gain, last_bias, weight, head_bias = _to_float64(*norm, *head)
    return [_map_linear(_map_layer_norm(stream, gain, last_bias, last_epsilon), weight.T, head_bias), *caches]


def _exact_reversible_step(tokens, embedding, place, layers, norm, head, past, length, epsilon, key_epsilon, self_bias):
    """Return the true outputs of ``reversible_step``: scores, then keys, values, buckets and order of each layer.

    A head attends to a position once for each chunk that has the position. The logarithm of this count is added to the
    position's score.
    """
    x = embedding[tokens.reshape(-1)].astype(np.float64) + place
    attention = feed_forward = x, np.abs(x)
    caches: list[Truth] = []
    for keys, values, buckets, order, rotations, factors, _, rounds, size, num_before, parameters in layers:
        rows, heads, _, depth = keys.shape
        parameters = [0.0 if array is None else array.astype(np.float64) for array in parameters]
        norm_rows = _map_layer_norm(feed_forward, parameters[0], parameters[1], epsilon)
        has_shared_keys = np.ndim(parameters[3]) == 0
        query, raw_key, value = (
            [part.reshape([rows, heads, depth]) for part in _map_linear(norm_rows, weight, 0.0)]
            for weight in (parameters[2], parameters[2 if has_shared_keys else 3], parameters[4])
        )
        key = _scale_key(raw_key, key_epsilon if has_shared_keys else None)
        new_keys, own_keys = _append_position(keys, key, past)
        new_values, own_values = _append_position(values, value, past)
        caches += [new_keys, new_values]
        if buckets is not None:
            buckets = buckets.copy()
            buckets[..., past] = _find_buckets(query[0], rotations, factors)
            order = order.copy()
            order[..., : past + 1] = np.argsort(buckets[..., : past + 1], kind="stable")
            caches += [*_round_nothing(buckets), *_round_nothing(order)]
        with np.errstate(divide="ignore"):
            bias = np.log(_count_views(order, [rows, heads, rounds], past, length, size, num_before))
        bias[..., past] += self_bias if has_shared_keys else 0.0
        context = _attend_positions(query, own_keys, own_values, bias, 1.0)
        attention, feed_forward = _apply_feed_forward(context, (attention, feed_forward), parameters[5:], epsilon)
    both = [np.concatenate(parts, axis=1) for parts in zip(attention, feed_forward, strict=True)]
    gain, norm_bias, weight, head_bias = _to_float64(*norm, *head)
    return [_map_linear(_map_layer_norm(both, gain, norm_bias, epsilon), weight, head_bias), *caches]


def _scale_key(x_and_unit, epsilon):
    """Return x divided by the root of its width, with its units; with an epsilon, also divided by its RMS."""
    x, unit = x_and_unit
    root = np.sqrt(x.shape[-1])
    if epsilon is None:
        return x / root, unit / root + np.abs(x / root)
    square = np.square(x).mean(-1, keepdims=True) + epsilon
    scale = 1.0 / np.sqrt(square)
    projection = (np.abs(x) * unit).mean(-1, keepdims=True) / square
    return x * scale / root, (unit + np.abs(x) * (2.0 + projection)) * scale / root


def _find_buckets(query, rotations, factors):
    """Return the hash buckets of queries, (B, H, R): the nearest rotated axis for each factor, combined.

    Args:
        query: queries, (B, H, D).
        rotations: random rotations, (H, D, R, axes).
        factors: factors of the number of buckets.
    """
    projections = np.einsum("bhd,hdra->bhra", query, rotations.astype(np.float64))
    bounds, bucket, count = np.cumsum([0, *(factors // 2)]), 0, 1
    for first, last, factor in zip(bounds, bounds[1:], factors, strict=False):
        own = projections[..., first:last]
        bucket, count = bucket + count * np.concatenate([own, -own], -1).argmax(-1), count * factor
    return bucket + np.arange(rotations.shape[2]) * count


def _count_views(order, shape, past, length, size, num_before):
    """Return how often the last position attends to each position in all hash rounds, (B, H, past + 1).

    Args:
        order: positions in the order of their buckets, (B, H, R, T); None for local attention.
        shape: B, H and R.
        past: index of the last position.
        length: number of positions with padding.
        size: number of positions of a chunk.
        num_before: number of earlier chunks that a chunk attends to.
    """
    rows, heads, rounds = shape
    ring = np.full([rows, heads, rounds, length], -1)
    ring[..., : past + 1] = np.arange(past + 1) if order is None else order[..., : past + 1]
    ring = ring.reshape([rows, heads, -1, min(size, rounds * length)])
    chunks, counts = ring.shape[2], np.zeros([rows, heads, past + 2])
    for row, head in np.ndindex(rows, heads):
        for chunk in np.flatnonzero((ring[row, head] == past).any(-1)):
            for step in range(num_before + 1 if chunks > 1 else 1):
                np.add.at(counts[row, head], ring[row, head, (chunk - step) % chunks], 1.0)
    return counts[..., :-1]


#: Shapes of a layer of CTRL: cached keys and values, norm, query, key, value, projection, norm, feed-forward.
DECODER_LAYER = [
    *2 * [[3, 4, 30, 16]],
    *2 * [[64]],
    *4 * [[64, 64], [64]],
    *2 * [[64]],
    *([64, 128], [128], [128, 64], [64]),
]
#: Arguments of a call of ``decoder_step`` without a mask, and with one.
DECODER_CALLS = tuple(
    ([3, 1], [300, 64], [32, 64], 2 * [DECODER_LAYER], [[64], [64]], [[300, 64], [300]], mask, past, 1e-6, 1e-6)
    for mask, past in ((None, 27), ([3, 30], 29))
)
#: Shapes of the weights of a layer of Reformer: norm, query, key, value, projection, norm, feed-forward.
REVERSIBLE_WEIGHTS = [*2 * [[64]], *3 * [[64, 64]], [64, 64], None, *2 * [[64]], [64, 128], [128], [128, 64], [64]]
#: Arguments of a call of ``reversible_step`` with a local layer and an LSH layer of 2 rounds and 2 * 8 buckets.
REVERSIBLE_CALLS = (
    (
        [3],
        [300, 64],
        [64],
        [
            [*2 * [[3, 4, 30, 16]], *4 * [None], 0, 1, 8, 1, REVERSIBLE_WEIGHTS],
            [
                *2 * [[3, 4, 30, 16]],
                *([3, 4, 2, 30], [3, 4, 2, 30], [4, 16, 2, 5], [2], 5, 2, 8, 1),
                [*REVERSIBLE_WEIGHTS[:3], None, *REVERSIBLE_WEIGHTS[4:]],
            ],
        ],
        [[128], [128]],
        [[128, 300], [300]],
        *(27, 32, 1e-12, 1e-6, -1e5),
    ),
)
#: Name of a function of :mod:`models.operations.compiled` that decodes a position -> check of its accuracy.
CHECKS = {
    "decoder_step": LoopCheck("decoder_step", DECODER_CALLS, _draw_decoder_step, _exact_decoder_step),
    "reversible_step": LoopCheck("reversible_step", REVERSIBLE_CALLS, _draw_reversible_step, _exact_reversible_step),
}
