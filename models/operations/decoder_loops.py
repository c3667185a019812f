"""Loops of decoders at one position: each weight is read once, by all threads. They are made of parts of
:mod:`models.operations.loops`, and are compiled and called as its loops are."""

from __future__ import annotations

import math

import numpy as np
from numba import carray, njit

from models.operations.loops import (
    _exp,
    _floats,
    _free,
    _integers,
    _largest,
    _loop,
    _nearest_axis,
    _norm,
    _room,
    _scalar,
    _share,
    _wait,
)


@njit(inline="always")
def _map(x, weight, bias, added, out, rows, inner, columns, relu):
    """x weight + bias, if that is not 0, by address: rectified if ``relu``, and plus ``added`` unless that is 0."""
    first, last = _share(columns)
    count = last - first
    whole = inner - inner % 8
    biases = _floats(bias, first, count)
    for row in range(rows):
        total = _floats(out, row * columns + first, count)
        for i in range(count):
            total[i] = biases[i] if bias else np.float32(0.0)
    for begin in range(0, whole, 8):  # eight rows of the weight at once: the totals are read and written less often
        w0 = _floats(weight, begin * columns + first, count)
        w1 = _floats(weight, (begin + 1) * columns + first, count)
        w2 = _floats(weight, (begin + 2) * columns + first, count)
        w3 = _floats(weight, (begin + 3) * columns + first, count)
        w4 = _floats(weight, (begin + 4) * columns + first, count)
        w5 = _floats(weight, (begin + 5) * columns + first, count)
        w6 = _floats(weight, (begin + 6) * columns + first, count)
        w7 = _floats(weight, (begin + 7) * columns + first, count)
        for row in range(rows):
            total = _floats(out, row * columns + first, count)
            own = _floats(x, row * inner + begin, 8)
            x0, x1, x2, x3, x4, x5, x6, x7 = own[0], own[1], own[2], own[3], own[4], own[5], own[6], own[7]
            for i in range(count):
                low = (x0 * w0[i] + x1 * w1[i]) + (x2 * w2[i] + x3 * w3[i])
                high = (x4 * w4[i] + x5 * w5[i]) + (x6 * w6[i] + x7 * w7[i])
                total[i] += low + high
    for row in range(rows):
        total = _floats(out, row * columns + first, count)
        for begin in range(whole, inner):
            own, weights = _floats(x, row * inner + begin, 1)[0], _floats(weight, begin * columns + first, count)
            for i in range(count):
                total[i] += own * weights[i]
        if relu:
            for i in range(count):
                total[i] = np.float32(0.0) if total[i] < np.float32(0.0) else total[i]  # not max: NaN stays NaN
        elif added:
            others = _floats(added, row * columns + first, count)
            for i in range(count):
                total[i] += others[i]


@njit(inline="always")
def _copy(x, out, count):
    """Numbers by address."""
    given, copied = _floats(x, 0, count), _floats(out, 0, count)
    for i in range(count):
        copied[i] = given[i]


@njit(inline="always")
def _attend(query, keys, values, seen, bias, out, weights, depth, count, divisor):
    """Attention of a head to ``count`` of its keys and values, by address: to those ``seen``, or to the first."""
    asked, context = _floats(query, 0, depth), _floats(out, 0, depth)
    scores, places = _floats(weights, 0, count), _integers(seen, 0, count)
    for which in range(count):
        key, score = _floats(keys, (places[which] if seen else which) * depth, depth), np.float32(0.0)
        for i in range(depth):
            score += asked[i] * key[i]
        scores[which] = score / divisor
    if bias:
        biases = _floats(bias, 0, count)
        for which in range(count):
            scores[which] += biases[which]
    largest, total = _largest(scores, count), np.float32(0.0)
    for which in range(count):
        weight = _exp(scores[which] - largest)
        scores[which] = weight
        total += weight
    for i in range(depth):
        context[i] = np.float32(0.0)
    for which in range(count):
        value, share = _floats(values, (places[which] if seen else which) * depth, depth), scores[which] / total
        for i in range(depth):
            context[i] += share * value[i]


@njit(inline="always")
def _feed_forward(of, context, streams, out, normed, hidden, rows, sizes, epsilon):
    """What follows the attention of a layer, by address. ``of``: weight or gain, and bias, of dense, norm, inner and
    outer. ``streams``, ``out``: the sum with the attention's output, and that with the feed-forward's. ``sizes``: of
    context, streams, feed-forward."""
    attended, width, inner = sizes
    _map(context, of[0], of[1], streams[0], out[0], rows, attended, width, False)
    _wait()
    _norm(out[0], of[2], of[3], normed, rows, width, epsilon)
    _wait()
    _map(normed, of[4], of[5], 0, hidden, rows, width, inner, True)
    _wait()
    _map(hidden, of[6], of[7], streams[1], out[1], rows, inner, width, False)
    _wait()


@njit(inline="always")
def _embed(tokens, embedding, place, out, rows, width, scale):
    """Rows of an embedding, scaled, plus those of a place, by address."""
    first, last = _share(rows)
    for row in range(first, last):
        token = _integers(tokens, row, 1)[0]
        own, embedded = _floats(embedding, token * width, width), _floats(out, row * width, width)
        placed = _floats(place, 0, width)
        for i in range(width):
            embedded[i] = own[i] * scale + placed[i]


@njit(inline="always")
def _score(x, weight, bias, out, rows, width, classes):
    """x times the transposed weight + bias, by address."""
    first, last = _share(classes)
    biases = _floats(bias, 0, classes)
    for name in range(first, last):
        own = _floats(weight, name * width, width)
        for row in range(rows):
            given, total = _floats(x, row * width, width), np.float32(0.0)
            for i in range(width):
                total += given[i] * own[i]
            _floats(out, row * classes + name, 1)[0] = total + biases[name]


@_loop("reassoc", "contract")
def decoder_step(given):
    """length (rows), tokens (int64, rows), embedding (., width), places (positions or more, width), bias (rows,
    positions; or 0), gain and bias of the last norm, weight (classes, width) and bias of the scores, out (rows,
    classes), scratch, classes, heads, depth, room, positions, inner, epsilon, the last norm's epsilon, layers, and an
    array of addresses (int64), of each layer: keys and values (rows, heads, room, depth), and gain or weight, and bias,
    of norm, query, key, value, dense, norm, inner, outer. A pre-norm decoder at the last of ``positions``: its keys and
    values are put behind those of the others."""
    args = carray(given, 21)
    rows, classes, heads, depth = args[0], args[11], args[12], args[13]
    room, positions, inner = args[14], args[15], args[16]
    epsilon, width, x = np.float32(_scalar(args[17])), heads * depth, args[10]
    size = 4 * rows * width
    normed, query, context, hidden = x + size, x + 2 * size, x + 5 * size, x + 6 * size
    weights = hidden + 4 * rows * inner
    root = math.sqrt(np.float32(depth))
    first, last = _share(rows * heads)
    placed = args[3] + 4 * (positions - 1) * width
    _embed(args[1], args[2], placed, x, rows, width, math.sqrt(np.float32(width)))  # each thread norms its own rows
    for layer in range(args[19]):
        of = _integers(args[20], 18 * layer, 18)
        _norm(x, of[2], of[3], normed, rows, width, epsilon)
        _wait()
        for which in range(3):
            _map(normed, of[4 + 2 * which], of[5 + 2 * which], 0, query + which * size, rows, width, width, False)
        _wait()
        for head in range(first, last):
            own, bias = 4 * head * depth, args[4] + 4 * (head // heads * positions) if args[4] else 0
            keys, values = of[0] + room * own, of[1] + room * own
            _copy(query + size + own, keys + 4 * (positions - 1) * depth, depth)
            _copy(query + 2 * size + own, values + 4 * (positions - 1) * depth, depth)
            scores = weights + 4 * head * positions
            _attend(query + own, keys, values, 0, bias, context + own, scores, depth, positions, root)
        _wait()
        sizes = width, width, inner  # the query is no longer needed
        _feed_forward(of[10:18], context, (x, query), (query, x), normed, hidden, rows, sizes, epsilon)
    _norm(x, args[5], args[6], normed, rows, width, np.float32(_scalar(args[18])))
    _wait()
    _score(normed, args[7], args[8], args[9], rows, width, classes)


# -- a decoder of two residual streams at one position, with local and LSH attention


@njit(inline="always")
def _put_key(made, kept, depth, shared, epsilon):
    """A vector over the root of its size; if it is ``shared`` with the query, with mean square 1, by address."""
    given, key = _floats(made, 0, depth), _floats(kept, 0, depth)
    divisor, squares = math.sqrt(np.float32(depth)), np.float32(0.0)
    if shared:
        for i in range(depth):
            squares += given[i] * given[i]
        divisor *= math.sqrt(squares / np.float32(depth) + epsilon)
    for i in range(depth):
        key[i] = given[i] / divisor


@njit(inline="always")
def _bucket(vector, rotations, stride, rotated, factors, depth, axes, turn):
    """The bucket of a vector in a round, by address. ``rotations``: (depth, axes), rows ``stride`` apart. Of the
    ``factors`` of the bucket count, each has half as many axes. No two rounds have a bucket in common."""
    asked, turned = _floats(vector, 0, depth), _floats(rotated, 0, axes)
    for i in range(axes):
        turned[i] = np.float32(0.0)
    for j in range(depth):
        row = _floats(rotations, j * stride, axes)
        for i in range(axes):
            turned[i] += asked[j] * row[i]
    bucket, below, count, which = 0, 0, 1, 0
    while below < axes:
        factor = _integers(factors, which, 1)[0]
        bucket += count * _nearest_axis(rotated + 4 * below, factor // 2)
        below, count, which = below + factor // 2, count * factor, which + 1
    return bucket + turn * count


@njit(inline="always")
def _up_to(buckets, bucket, count):
    """How many of the first ``count`` buckets are not above this one."""
    found = 0
    for position in range(count):
        found += 1 if buckets[position] <= bucket else 0
    return found


@njit(inline="always")
def _sort_in(buckets, order, positions):
    """Put the last position where its bucket belongs in the order of the others."""
    place = _up_to(buckets, buckets[positions - 1], positions - 1)
    for behind in range(positions - 1, place, -1):
        order[behind] = order[behind - 1]
    order[place] = positions - 1


@njit(inline="always")
def _see(buckets, order, chunks, head, room, positions, padded, seen, added, for_itself):
    """Which positions a head's last one sees, and what is added to their scores, by address; return how many.

    ``chunks``: hash rounds, chunk length, chunks before. In each round the last position sees its chunk and those
    before, in the ring of all rounds' chunks; what is beyond a round's positions is padding. A lone chunk is seen again
    in place of those before: each position as often, so nothing changes. Without buckets, positions are in order.
    ``for_itself``: what is added to the position's score for itself.
    """
    rounds, length, before = chunks
    size = min(length, rounds * padded)
    ring, found = rounds * padded // size, 0
    places, scores = _integers(seen, 0, rounds * size * (before + 1)), _floats(added, 0, rounds * size * (before + 1))
    for which in range(rounds):
        place = positions - 1
        if buckets:
            own = _integers(buckets, (head * rounds + which) * room, positions)
            place = _up_to(own, own[positions - 1], positions) - 1
        chunk = (which * padded + place) // size
        for step in range(-before, 1):
            first = (chunk + step) % ring * size
            for slot in range(first, first + size):
                if slot % padded < positions:
                    position = slot % padded
                    if buckets:
                        position = _integers(order, (head * rounds + slot // padded) * room + position, 1)[0]
                    places[found] = position
                    scores[found] = for_itself if position == positions - 1 else np.float32(0.0)
                    found += 1
    return found


@_loop("reassoc", "contract")
def reversible_step(given):
    """length (rows), tokens (int64, rows), embedding (., width), place (width), gain and bias of the last norm, weight
    (2 * width, classes) and bias of the scores, out (rows, classes), scratch, width, classes, heads, depth, room,
    positions, padded, inner, most (that a head sees), axes (of a layer at most), epsilon, epsilon of keys, what is
    added to a position's score for itself, layers, and an array (int64), of each layer the 23 addresses and sizes of a
    :class:`models.operations.compiled.ReversibleLayer`. The key, value and bucket of the last of ``positions`` are put
    behind those of the others."""
    args = carray(given, 25)
    rows, width, classes, heads, depth, room = args[0], args[10], args[11], args[12], args[13], args[14]
    positions, padded, inner, most = args[15], args[16], args[17], args[18]
    epsilon, key_epsilon = np.float32(_scalar(args[20])), np.float32(_scalar(args[21]))
    attended, stream, self_masked = heads * depth, 4 * rows * width, np.float32(_scalar(args[22]))
    streams, out = (args[9], args[9] + stream), (args[9] + 2 * stream, args[9] + 3 * stream)
    normed, query = args[9] + 4 * stream, args[9] + 6 * stream
    value, context = query + 4 * rows * attended, query + 8 * rows * attended
    key, hidden = context, context + 4 * rows * attended  # of a head, its context replaces its key
    sizes = attended, width, inner
    memory, seen = _room(8 * most + 4 * (2 * most + args[19]))
    scores, added, rotated = seen + 8 * most, seen + 12 * most, seen + 16 * most
    for embedded in streams:
        _embed(args[1], args[2], args[3], embedded, rows, width, np.float32(1.0))
    first, last = _share(rows * heads)
    for layer in range(args[23]):
        of = _integers(args[24], 23 * layer, 23)
        buckets, order, rotations, factors, axes, rounds = of[2], of[3], of[4], of[5], of[6], of[7]
        chunks, own_key = (rounds, of[8], of[9]), of[13]
        for_itself = np.float32(0.0) if own_key else self_masked
        _norm(streams[1], of[10], of[11], normed, rows, width, epsilon)
        _wait()
        _map(normed, of[12], 0, 0, query, rows, width, attended, False)
        if own_key:
            _map(normed, own_key, 0, 0, key, rows, width, attended, False)
        _map(normed, of[14], 0, 0, value, rows, width, attended, False)
        _wait()
        for head in range(first, last):
            own, behind = 4 * head * depth, 4 * (positions - 1) * depth
            keys, values = of[0] + room * own, of[1] + room * own
            _put_key((key if own_key else query) + own, keys + behind, depth, not own_key, key_epsilon)
            _copy(value + own, values + behind, depth)
            if buckets:
                for which in range(rounds):
                    begin = (head * rounds + which) * room
                    found = _integers(buckets, begin, room)
                    if axes:
                        turn = rotations + 4 * (head % heads * depth * rounds + which) * axes
                        found[positions - 1] = _bucket(
                            query + own, turn, rounds * axes, rotated, factors, depth, axes, which
                        )
                    _sort_in(found, _integers(order, begin, room), positions)
            count = _see(buckets, order, chunks, head, room, positions, padded, seen, added, for_itself)
            _attend(query + own, keys, values, seen, added, context + own, scores, depth, count, np.float32(1.0))
        _wait()
        _feed_forward(of[15:23], context, streams, out, normed, hidden, rows, sizes, epsilon)
        streams, out = out, streams
    _free(memory)
    first, last = _share(rows)
    for row in range(first, last):
        for which in range(2):
            _copy(streams[which] + 4 * row * width, out[0] + 4 * (2 * row + which) * width, width)
    _norm(out[0], args[4], args[5], normed, rows, 2 * width, epsilon)
    _wait()
    _map(normed, args[6], args[7], 0, args[8], rows, 2 * width, classes, False)
