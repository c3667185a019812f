"""Input for the compiled loops of decoders at one position, and what should come out, as in :mod:`.loop_truths`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolkit.parity.measure.loop_truths import (
    LoopCheck,
    Truth,
    _double,
    _draw_normal,
    _exactly,
    _kept,
    _normal,
    _normed,
    _weights,
)

# -- what is drawn


def _draw_decoder_step(draw, tokens, embedding, places, layers, norm, head, bias, past, epsilon, last_epsilon):
    """Embeddings in whose variance epsilon counts, weights that keep the size of what they map, and masked positions,
    but not the last. Only the last place is not 0."""
    small = np.float32(np.sqrt(epsilon))
    placed = np.zeros(places, np.float32)
    placed[past] = small * _normal(draw, places[1:])
    drawn = [[_weight(draw, one) for one in of] for of in layers]
    if bias is not None:
        bias = np.where(_kept(draw, bias), _normal(draw, bias), np.finfo(np.float32).min)
    return (
        draw.integers(0, embedding[0], tokens),
        np.float32(4.0 * small / np.sqrt(embedding[1])) * _normal(draw, embedding),
        placed,
        drawn,
        list(_draw_normal(draw, *norm)),
        list(_draw_normal(draw, *head)),
        bias,
        past,
        epsilon,
        last_epsilon,
    )


def _draw_reversible_step(draw, tokens, embedding, place, layers, norm, head, past, *given):
    """Embeddings in whose variance epsilon counts, and positions that are already sorted by their buckets."""
    small = np.float32(np.sqrt(given[1]))
    embedded, placed = small * _normal(draw, embedding), small * _normal(draw, place)
    drawn = [_draw_reversible_layer(draw, past, *layer) for layer in layers]
    ends = ([_weight(draw, one) for one in of] for of in (norm, head))
    return draw.integers(0, embedding[0], tokens), embedded, placed, drawn, *ends, past, *given


def _draw_reversible_layer(draw, past, keys, values, buckets, order, rotations, factors, axes, rounds, *given):
    *sizes, parameters = given
    held = [_normal(draw, keys), _normal(draw, values), None, None, None, None, axes, rounds, *sizes]
    if buckets is not None:
        held[5] = np.array([2] * (factors[0] - 1) + [2 * (axes + 1 - factors[0])])
        turns = np.arange(rounds)[:, None] * held[5].prod()
        held[2] = turns + draw.integers(0, held[5].prod(), buckets)
        held[3] = np.zeros(order, np.int64)
        held[3][..., :past] = np.argsort(held[2][..., :past], kind="stable")
        held[4] = _normal(draw, rotations)
    return [*held, [None if one is None else _weight(draw, one) for one in parameters]]


def _weight(draw: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """A vector, or a matrix that keeps the size of what it maps."""
    return _normal(draw, shape) / np.float32(np.sqrt(shape[0] if len(shape) == 2 else 1))


# -- what comes out, in float64


def _mapped(given, weight, bias):
    """x weight + bias and its units, given x and its units, roundings that have nothing to do with one another."""
    x, off = given
    return x @ weight + bias, np.sqrt(off**2 @ weight**2) + np.abs(x) @ np.abs(weight) + np.abs(bias)


def _normed_by(given, gain, bias, epsilon):
    """As :func:`_mapped`, of layer norm."""
    x, off = given
    normed, scale, unit = _normed(x, epsilon)
    moved = off * scale
    unit = (
        unit + moved + moved.mean(-1, keepdims=True) + np.abs(normed) * (np.abs(normed) * moved).mean(-1, keepdims=True)
    )
    return normed * gain + bias, unit * np.abs(gain) + np.abs(bias)


def _attended(query, keys, values, added, divisor):
    """As :func:`_mapped`, of the attention of heads (B, H, D) to positions (B, H, T, D), each with its units."""
    (query, query_off), (keys, keys_off), (values, values_off) = query, keys, values
    scores = np.einsum("bhd,bhtd->bht", query, keys) / divisor + added
    size = np.einsum("bhd,bhtd->bht", np.abs(query), np.abs(keys)) / divisor + np.abs(added)
    size += np.sqrt(np.einsum("bhd,bhtd->bht", query_off**2, keys**2)) / divisor
    size += np.sqrt(np.einsum("bhd,bhtd->bht", query**2, keys_off**2)) / divisor
    weights, _, _ = _weights(scores)
    moved = weights * (2.0 + np.where(weights > 0, size, 0.0))
    context = np.einsum("bht,bhtd->bhd", weights, values)
    unit = np.einsum("bht,bhtd->bhd", moved, np.abs(values)) + np.einsum("bht,bhtd->bhd", weights, values_off)
    unit += np.abs(context) * moved.sum(-1, keepdims=True)
    return context.reshape(len(query), -1), unit.reshape(len(query), -1)


def _fed_forward(context, streams, parameters, epsilon):
    """The stream plus the attention's output, and the other one plus the feed-forward's, each with its units. Without
    the other, the first takes its place."""
    dense, bias, gain, norm_bias, inner, inner_bias, outer, outer_bias = parameters
    attention = _plus(streams[0], _mapped(context, dense, bias))
    hidden, off = _mapped(_normed_by(attention, gain, norm_bias, epsilon), inner, inner_bias)
    update = _mapped((np.maximum(hidden, 0.0), off), outer, outer_bias)
    return attention, _plus(streams[1] or attention, update)


def _plus(stream, update):
    return stream[0] + update[0], stream[1] + update[1] + np.abs(stream[0])


def _put(held, new, past):
    """What is held, with the new one in its place, each with its units; and only as far as that."""
    held, off = held.astype(np.float64), np.zeros(held.shape)
    held[:, :, past], off[:, :, past] = new
    return (held, off), (held[:, :, : past + 1], off[:, :, : past + 1])


def _decoder_step(tokens, embedding, places, layers, norm, head, bias, past, epsilon, last_epsilon):
    """What is rounded in a layer is a part of the units of all behind it."""
    embedded, place = _double(embedding[tokens.reshape(-1)], places[past])
    embedded *= np.sqrt(embedded.shape[1])
    x, kept = (embedded + place, np.abs(embedded) + np.abs(embedded + place)), []
    for keys, values, *parameters in layers:
        rows, heads, _, depth = keys.shape
        parameters = _double(*parameters)
        normed = _normed_by(x, parameters[0], parameters[1], epsilon)
        query, key, value = (
            [one.reshape([rows, heads, depth]) for one in _mapped(normed, *parameters[first : first + 2])]
            for first in (2, 4, 6)
        )
        (held, own), (held_values, own_values) = _put(keys, key, past), _put(values, value, past)
        kept += [held, held_values]
        context = _attended(query, own, own_values, 0.0 if bias is None else bias[:, None], np.sqrt(depth))
        _, x = _fed_forward(context, (x, None), parameters[8:], epsilon)
    gain, last_bias, weight, head_bias = _double(*norm, *head)
    return [_mapped(_normed_by(x, gain, last_bias, last_epsilon), weight.T, head_bias), *kept]


def _reversible_step(tokens, embedding, place, layers, norm, head, past, padded, epsilon, key_epsilon, self_masked):
    """As :func:`_decoder_step`. A head sees a position as often as chunks that it sees have it: so much is added to the
    position's score."""
    embedded = embedding[tokens.reshape(-1)].astype(np.float64) + place
    attention = hidden = embedded, np.abs(embedded)
    kept: list[Truth] = []
    for keys, values, buckets, order, rotations, factors, _, rounds, size, before, parameters in layers:
        rows, heads, _, depth = keys.shape
        parameters = [0.0 if one is None else one.astype(np.float64) for one in parameters]
        normed = _normed_by(hidden, parameters[0], parameters[1], epsilon)
        shared = np.ndim(parameters[3]) == 0
        query, made, value = (
            [one.reshape([rows, heads, depth]) for one in _mapped(normed, weight, 0.0)]
            for weight in (parameters[2], parameters[2 if shared else 3], parameters[4])
        )
        key = _as_key(made, key_epsilon if shared else None)
        (held, own), (held_values, own_values) = _put(keys, key, past), _put(values, value, past)
        kept += [held, held_values]
        if buckets is not None:
            buckets = buckets.copy()
            buckets[..., past] = _buckets(query[0], rotations, factors)
            order = order.copy()
            order[..., : past + 1] = np.argsort(buckets[..., : past + 1], kind="stable")
            kept += [*_exactly(buckets), *_exactly(order)]
        with np.errstate(divide="ignore"):
            added = np.log(_times_seen(order, [rows, heads, rounds], past, padded, size, before))
        added[..., past] += self_masked if shared else 0.0
        context = _attended(query, own, own_values, added, 1.0)
        attention, hidden = _fed_forward(context, (attention, hidden), parameters[5:], epsilon)
    both = [np.concatenate(pair, axis=1) for pair in zip(attention, hidden, strict=True)]
    gain, bias, weight, head_bias = _double(*norm, *head)
    return [_mapped(_normed_by(both, gain, bias, epsilon), weight, head_bias), *kept]


def _as_key(given, epsilon):
    """As :func:`_mapped`: over the root of its size, and where there is an epsilon, of its mean square, too."""
    x, off = given
    root = np.sqrt(x.shape[-1])
    if epsilon is None:
        return x / root, off / root + np.abs(x / root)
    square = np.square(x).mean(-1, keepdims=True) + epsilon
    scale = 1.0 / np.sqrt(square)
    along = (np.abs(x) * off).mean(-1, keepdims=True) / square
    return x * scale / root, (off + np.abs(x) * (2.0 + along)) * scale / root


def _buckets(query, rotations, factors):
    """Buckets (B, H, R) of (B, H, D) by rotations (H, D, R, axes): of each factor the nearest of its axes."""
    rotated = np.einsum("bhd,hdra->bhra", query, rotations.astype(np.float64))
    bounds, bucket, count = np.cumsum([0, *(factors // 2)]), 0, 1
    for first, last, factor in zip(bounds, bounds[1:], factors, strict=False):
        own = rotated[..., first:last]
        bucket, count = bucket + count * np.concatenate([own, -own], -1).argmax(-1), count * factor
    return bucket + np.arange(rotations.shape[2]) * count


def _times_seen(order, shape, past, padded, size, before):
    """How often the last position sees each one in all rounds: (B, H, R) -> (B, H, past + 1)."""
    rows, heads, rounds = shape
    ring = np.full([rows, heads, rounds, padded], -1)
    ring[..., : past + 1] = np.arange(past + 1) if order is None else order[..., : past + 1]
    ring = ring.reshape([rows, heads, -1, min(size, rounds * padded)])
    chunks, seen = ring.shape[2], np.zeros([rows, heads, past + 2])
    for row, head in np.ndindex(rows, heads):
        for chunk in np.flatnonzero((ring[row, head] == past).any(-1)):
            for step in range(before + 1 if chunks > 1 else 1):
                np.add.at(seen[row, head], ring[row, head, (chunk - step) % chunks], 1.0)
    return seen[..., :-1]


#: By function of :mod:`models.operations.compiled`.
CHECKS = {
    "decoder_step": LoopCheck("decoder_step", (1, 5), _draw_decoder_step, _decoder_step),
    "reversible_step": LoopCheck("reversible_step", (1,), _draw_reversible_step, _reversible_step),
}
