"""Loops that compute a decoder at one position: all threads together read each weight once.

They consist of parts of :mod:`models.operations.loops`, and are compiled and called as its loops are.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray, njit

from models.operations.loops import (
    _allocate,
    _exp,
    _float32_pointer,
    _free_bytes,
    _int64_pointer,
    _largest,
    _nearest_axis,
    _normalize_rows,
    _own_rows,
    _own_share,
    _wait_for_threads,
    compiled_loop,
    record_reader,
)

_read_decoder_layer, _read_reversible_layer = record_reader("decoder_layer"), record_reader("reversible_layer")


#: Compiles a function once; with ``inline``, it would be compiled again for each of its calls.
_compile_once = njit(error_model="numpy", fastmath={"reassoc", "contract"})


@njit(inline="always")
def _four_rows(matrix, row, columns):
    """Return a slice of columns of four rows, from ``row``.

    Args:
        matrix: matrix of any shape, (rows, width).
        row: index of the first row.
        columns: slice of the columns.
    """
    return matrix[row, columns], matrix[row + 1, columns], matrix[row + 2, columns], matrix[row + 3, columns]


@njit(inline="always")
def _four_numbers(vector, i):
    """Return four numbers of a vector, from index ``i``."""
    return vector[i], vector[i + 1], vector[i + 2], vector[i + 3]


@_compile_once
def _map_rows(x, weight, bias, has_bias, residual, has_residual, out, is_rectified):
    """Write this thread's share of the columns of x weight + bias, rectified or plus a residual.

    Args:
        x: input, (rows, inner).
        weight: weight, (inner, columns).
        bias: bias, (columns,), if ``has_bias``.
        has_bias: whether the bias is added.
        residual: added after the product, (rows, columns), if ``has_residual``.
        has_residual: whether the residual is added.
        out: output, (rows, columns).
        is_rectified: whether numbers below 0 become 0, instead of the addition of a residual.
    """
    rows, inner = x.shape
    first, last = _own_share(weight.shape[1])
    count, columns = last - first, slice(first, last)
    whole = inner - inner % 8
    own_bias = bias[columns]
    for row in range(rows):
        total = out[row, columns]
        for i in range(count):
            total[i] = own_bias[i] if has_bias else np.float32(0.0)
    for begin in range(0, whole, 8):  # eight rows of the weight at once: the totals are read and written less often
        w = _four_rows(weight, begin, columns) + _four_rows(weight, begin + 4, columns)
        for row in range(rows):
            total, a = out[row, columns], _four_numbers(x[row], begin) + _four_numbers(x[row], begin + 4)
            for i in range(count):
                low = (a[0] * w[0][i] + a[1] * w[1][i]) + (a[2] * w[2][i] + a[3] * w[3][i])
                high = (a[4] * w[4][i] + a[5] * w[5][i]) + (a[6] * w[6][i] + a[7] * w[7][i])
                total[i] += low + high
    for row in range(rows):
        total = out[row, columns]
        for begin in range(whole, inner):
            number, weights = x[row, begin], weight[begin, columns]
            for i in range(count):
                total[i] += number * weights[i]
        if is_rectified:
            for i in range(count):
                total[i] = np.float32(0.0) if total[i] < np.float32(0.0) else total[i]  # not max: NaN stays NaN
        elif has_residual:
            own_residual = residual[row, columns]
            for i in range(count):
                total[i] += own_residual[i]


@njit(inline="always")
def _copy_vector(x, out):
    """Copy the vector ``x``, (n,), to ``out``."""
    for i in range(x.shape[0]):
        out[i] = x[i]


@_compile_once
def _attend(query, keys, values, positions_and_bias, out, scores, count, divisor):
    """Write the attention of a head to ``count`` of its keys and values.

    Args:
        query: query, (depth,).
        keys: keys of all positions, (capacity, depth).
        values: values of all positions, (capacity, depth).
        positions_and_bias: positions that the head sees, and whether they are used instead of the first ``count``;
            bias of the scores, and whether it is used.
        out: output, (depth,).
        scores: scratch memory, (count,) or longer.
        count: number of positions that the head sees.
        divisor: divisor of the scores.
    """
    positions, has_positions, bias, has_bias = positions_and_bias
    depth = query.shape[0]
    for index in range(count):
        key, score = keys[positions[index] if has_positions else index], np.float32(0.0)
        for i in range(depth):
            score += query[i] * key[i]
        scores[index] = score / divisor
    if has_bias:
        for index in range(count):
            scores[index] += bias[index]
    largest, total = _largest(scores, count), np.float32(0.0)
    for index in range(count):
        weight = _exp(scores[index] - largest)
        scores[index] = weight
        total += weight
    out[:] = np.float32(0.0)
    for index in range(count):
        value, share = values[positions[index] if has_positions else index], scores[index] / total
        for i in range(depth):
            out[i] += share * value[i]


@_compile_once
def _feed_forward(layer, context, streams, sums, scratch, epsilon):
    """Write what follows the attention of a layer: its output layer and the feed-forward.

    Args:
        layer: record of the layer.
        context: output of the attention's heads, (rows, attention_width).
        streams: residual streams to which the attention and the feed-forward are added, (rows, width) each.
        sums: outputs, the two streams after the addition.
        scratch: memory for the normalized and for the inner numbers, (rows, width) and (rows, inner).
        epsilon: epsilon of the layer norm.
    """
    normalized, inner = scratch
    _map_rows(context, layer.dense_weight, layer.dense_bias, layer.has_dense_bias, streams[0], True, sums[0], False)
    _wait_for_threads()
    _normalize_rows(sums[0], layer.norm2_gain, layer.norm2_bias, normalized, epsilon)
    _wait_for_threads()
    _map_rows(normalized, layer.inner_weight, layer.inner_bias, layer.has_inner_bias, inner, False, inner, True)
    _wait_for_threads()
    _map_rows(inner, layer.outer_weight, layer.outer_bias, layer.has_outer_bias, streams[1], True, sums[1], False)
    _wait_for_threads()


@_compile_once
def _embed_tokens(tokens, embedding, position, out, scale):
    """Write the scaled embedding of each token plus the position's vector.

    Args:
        tokens: token ids, (B,).
        embedding: embedding table, (vocabulary, width).
        position: vector of the position, (width,).
        out: array for the result, (B, width).
        scale: factor of the embeddings.
    """
    rows, width = out.shape
    for row in _own_rows(rows):
        token_vector, out_row = embedding[tokens[row]], out[row]
        for i in range(width):
            out_row[i] = token_vector[i] * scale + position[i]


@_compile_once
def _score_classes(x, weight, bias, out):
    """Write x times the transposed weight, plus the bias.

    Args:
        x: input rows, (B, width).
        weight: weight of the output layer, (classes, width).
        bias: bias, (classes,).
        out: array for the scores, (B, classes).
    """
    classes, width = weight.shape
    for label in _own_rows(classes):
        class_weight = weight[label]
        for row in range(x.shape[0]):
            x_row, total = x[row], np.float32(0.0)
            for i in range(width):
                total += x_row[i] * class_weight[i]
            out[row, label] = total + bias[label]


@compiled_loop("reassoc", "contract")
def decoder_step(call):
    """Compute a pre-norm decoder at the last position, and append its keys and values."""
    rows, heads, positions = call.scores.shape
    stream, normed, projections, context = call.stream, call.normed, call.projections, call.context
    query, key, value = projections[0], projections[1], projections[2]
    width = stream.shape[1]
    depth, last_position = width // heads, positions - 1
    root = math.sqrt(np.float32(depth))
    position = call.position_table[last_position]
    # Each thread normalizes the rows that it embeds.
    _embed_tokens(call.tokens, call.embedding, position, stream, math.sqrt(np.float32(width)))
    for index in range(call.layers.shape[0]):
        layer = _read_decoder_layer(call.layers[index])
        _normalize_rows(stream, layer.norm_gain, layer.norm_bias, normed, call.epsilon)
        _wait_for_threads()
        weights = layer.query_weight, layer.key_weight, layer.value_weight
        biases = layer.query_bias, layer.key_bias, layer.value_bias
        for kind in range(3):
            _map_rows(normed, weights[kind], biases[kind], True, normed, False, projections[kind], False)
        _wait_for_threads()
        for row_head in _own_rows(rows * heads):
            row, head = row_head // heads, row_head % heads
            columns = slice(head * depth, (head + 1) * depth)
            keys, values = layer.keys[row, head], layer.values[row, head]
            _copy_vector(key[row, columns], keys[last_position])
            _copy_vector(value[row, columns], values[last_position])
            scores, bias = call.scores[row, head], call.score_bias[row]
            positions_and_bias = call.tokens, False, bias, call.has_score_bias
            _attend(
                query[row, columns], keys, values, positions_and_bias, context[row, columns], scores, positions, root
            )
        _wait_for_threads()
        # The memory of the query now holds the sum with the attention.
        _feed_forward(layer, context, (stream, query), (query, stream), (normed, call.hidden), call.epsilon)
    _normalize_rows(stream, call.norm_gain, call.norm_bias, normed, call.last_epsilon)
    _wait_for_threads()
    _score_classes(normed, call.head_weight, call.head_bias, call.out)


# -- a decoder of two residual streams at one position, with local and LSH attention


@_compile_once
def _write_key(vector, key, is_shared, epsilon):
    """Write a vector over the root of its length; if the query is the key (``is_shared``), with mean square 1.

    Args:
        vector: projection of the hidden state, (D,).
        key: key, the result, (D,).
        is_shared: whether queries and keys have the same projection, as in LSH attention.
        epsilon: number that is added to the mean square of a shared vector.
    """
    depth = vector.shape[0]
    divisor, squares = math.sqrt(np.float32(depth)), np.float32(0.0)
    if is_shared:
        for i in range(depth):
            squares += vector[i] * vector[i]
        divisor *= math.sqrt(squares / np.float32(depth) + epsilon)
    for i in range(depth):
        key[i] = vector[i] / divisor


@_compile_once
def _hash_vector(vector, rotations, factors, rotated, turn):
    """Return the bucket of a vector in a hash round; no two rounds share a bucket.

    Args:
        vector: vector, (depth,).
        rotations: rotations of the head, (depth, rounds, axes).
        factors: factors of the bucket count; each has half as many axes.
        rotated: scratch memory, (axes,) or longer.
        turn: index of the hash round.
    """
    depth, _, axes = rotations.shape
    rotated[:axes] = np.float32(0.0)
    for j in range(depth):
        rotation_row = rotations[j, turn]
        for i in range(axes):
            rotated[i] += vector[j] * rotation_row[i]
    bucket, begin, count = 0, 0, 1
    for index in range(factors.shape[0]):
        factor = factors[index]
        bucket += count * _nearest_axis(rotated[begin : begin + factor // 2])
        begin, count = begin + factor // 2, count * factor
    return bucket + turn * count


@_compile_once
def _count_up_to(buckets, bucket, count):
    """Count the first ``count`` buckets that are not above ``bucket``.

    Args:
        buckets: bucket of each position in one hash round, (T,).
        bucket: bucket to compare with.
        count: number of positions that are compared.
    """
    total = 0
    for position in range(count):
        total += 1 if buckets[position] <= bucket else 0
    return total


@_compile_once
def _insert_sorted(buckets, order, position):
    """Insert a position into the order of the earlier positions, behind those in the same bucket.

    Args:
        buckets: bucket of each position in one hash round, (T,).
        order: positions sorted by bucket, then by position; ``position`` is inserted in place.
        position: number of earlier positions, which is also the position to insert.
    """
    rank = _count_up_to(buckets, buckets[position], position)
    for slot in range(position, rank, -1):
        order[slot] = order[slot - 1]
    order[rank] = position


@_compile_once
def _list_visible(call, layer, row, head, own_score, visible, score_bias):
    """Write the positions that the last position sees in a layer, and numbers to add to their scores.

    In each hash round the last position sees its chunk and the chunks before it, in the ring of the chunks of all
    rounds. A ring with fewer chunks is seen several times, each position equally often, which changes nothing. Slots
    behind the positions of a round are padding. Without buckets, the order is the order of the text.

    Args:
        call: arguments of :func:`reversible_step`.
        layer: record of the layer.
        row: index of the text.
        head: index of the head.
        own_score: number to add to the score of the last position for itself.
        visible: output, the positions; a position that several rounds show is listed once for each round.
        score_bias: output, the number to add to the score of each listed position: ``own_score`` or 0.

    Returns:
        The number of listed positions.
    """
    positions, padded_length, rounds = call.num_positions, call.padded_length, layer.buckets.shape[2]
    size = min(layer.chunk_length, rounds * padded_length)
    ring, count = rounds * padded_length // size, 0
    for turn in range(rounds):
        rank = positions - 1
        if layer.has_buckets:
            buckets = layer.buckets[row, head, turn]
            rank = _count_up_to(buckets, buckets[positions - 1], positions) - 1
        chunk = (turn * padded_length + rank) // size
        for step in range(-layer.chunks_before, 1):
            first = (chunk + step) % ring * size
            for slot in range(first, first + size):
                if slot % padded_length < positions:
                    position = slot % padded_length
                    if layer.has_buckets:
                        position = layer.order[row, head, slot // padded_length, position]
                    visible[count] = position
                    score_bias[count] = own_score if position == positions - 1 else np.float32(0.0)
                    count += 1
    return count


@compiled_loop("reassoc", "contract")
def reversible_step(call):
    """Compute a decoder of two streams at the last position; its keys, values and buckets are appended in place."""
    streams, next_streams, last_position, zero = (
        call.streams,
        call.next_streams,
        call.num_positions - 1,
        np.float32(0.0),
    )
    normed, query, value, context, joined = call.normed, call.query, call.value, call.context, call.joined
    _, rows, width = streams.shape
    count = call.max_visible
    memory, begin_memory = _allocate(16 * count + 4 * call.max_axes)
    visible = carray(_int64_pointer(begin_memory), count)
    scores = carray(_float32_pointer(begin_memory + 8 * count), count)
    score_bias = carray(_float32_pointer(begin_memory + 12 * count), count)
    rotated = carray(_float32_pointer(begin_memory + 16 * count), call.max_axes)
    key = context  # the context of a head replaces its key
    for index in range(2):
        _embed_tokens(call.tokens, call.embedding, call.position, streams[index], np.float32(1.0))
    for index in range(call.layers.shape[0]):
        layer = _read_reversible_layer(call.layers[index])
        _, heads, _, depth = layer.keys.shape
        is_shared = not layer.has_key_weight
        _normalize_rows(streams[1], layer.norm_gain, layer.norm_bias, normed, call.epsilon)
        _wait_for_threads()
        _map_rows(normed, layer.query_weight, layer.norm_bias, False, normed, False, query, False)
        if layer.has_key_weight:
            _map_rows(normed, layer.key_weight, layer.norm_bias, False, normed, False, key, False)
        _map_rows(normed, layer.value_weight, layer.norm_bias, False, normed, False, value, False)
        _wait_for_threads()
        for row_head in _own_rows(rows * heads):
            row, head = row_head // heads, row_head % heads
            columns = slice(head * depth, (head + 1) * depth)
            keys, values, own_query = layer.keys[row, head], layer.values[row, head], query[row, columns]
            own_key = key[row, columns] if layer.has_key_weight else own_query
            _write_key(own_key, keys[last_position], is_shared, call.key_epsilon)
            _copy_vector(value[row, columns], values[last_position])
            if layer.has_buckets:
                for turn in range(layer.buckets.shape[2]):
                    buckets = layer.buckets[row, head, turn]
                    if layer.has_rotations:
                        rotations = layer.rotations[head]
                        buckets[last_position] = _hash_vector(own_query, rotations, layer.factors, rotated, turn)
                    _insert_sorted(buckets, layer.order[row, head, turn], last_position)
            own_score = call.own_score if is_shared else zero
            count = _list_visible(call, layer, row, head, own_score, visible, score_bias)
            positions_and_bias = visible, True, score_bias, True
            out = context[row, columns]
            _attend(own_query, keys, values, positions_and_bias, out, scores, count, np.float32(1.0))
        _wait_for_threads()
        _feed_forward(layer, context, streams, next_streams, (normed, call.hidden), call.epsilon)
        streams, next_streams = next_streams, streams
    _free_bytes(memory)
    for row in _own_rows(rows):
        _copy_vector(streams[0, row], joined[row, :width])
        _copy_vector(streams[1, row], joined[row, width:])
    _normalize_rows(joined, call.norm_gain, call.norm_bias, call.normed_joined, call.epsilon)
    _wait_for_threads()
    _map_rows(call.normed_joined, call.head_weight, call.head_bias, True, joined, False, call.out, False)
