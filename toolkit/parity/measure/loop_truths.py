"""Random input for each compiled loop in isolation, and its true outputs in float64.

For each element, a *unit* is one float32 rounding of the terms of its sum. A function ``_draw_NAME`` takes a generator
and the arguments of a call of ``NAME``, with shapes instead of arrays. It returns the arguments with random arrays. A
function ``_exact_NAME`` takes these arguments and returns the true outputs with their units. Each ``NAME`` is a
function of :mod:`models.operations.compiled`, which describes the arguments. Only NumPy is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Unit of rounding of float32: half the distance from 1 to the next number.
ROUNDING = 2.0**-24
#: Smallest unit of a number that may underflow: below 2^-126, float32 has fewer digits.
LEAST = 2.0**-125
#: Number of columns whose sum counts as one more rounding, which adds one unit.
ONE_SUM = 4096
#: Largest number of attention scores that are computed at a time.
MAX_SCORES = 2**19

#: A true output and the units of its elements, of the same shape. An element with unit 0 must be exact.
Truth = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class LoopCheck:
    """Check of the accuracy of a function of :mod:`models.operations.compiled`.

    Attributes:
        loop: name of the loop that the function runs, of a file of :data:`models.operations.loop_code.LOOP_FILES`.
        calls: arguments of each call that is checked, with shapes instead of arrays.
        draw: returns the arguments with random arrays, given a generator and the arguments with shapes.
        exact: returns the true outputs with their units, given the arguments with arrays.
    """

    loop: str
    calls: tuple[Sequence[Any], ...]
    draw: Callable[..., tuple]
    exact: Callable[..., list[Truth]]


# -- random input


def _draw_array(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Draw standard normal numbers of this shape, float32."""
    return rng.standard_normal(tuple(shape), np.float32)


def _draw_scores(rng: np.random.Generator, shape: Sequence[int], max_exponent: float = 4.0) -> np.ndarray:
    """Draw rows of scores, from nearly even to peaked, on a grid of exact float32 differences.

    The distance from the largest score is exact, so that only exp and the sum cause errors.

    Args:
        rng: random generator.
        shape: shape of the scores; a row is along the last axis.
        max_exponent: base-2 logarithm of the largest spread of a row.
    """
    spread = np.exp2(rng.uniform(-2.0, max_exponent, (*shape[:-1], 1)))
    return (np.rint(_draw_array(rng, shape) * spread * 2.0**12) / 2.0**12).astype(np.float32)


def _draw_rows(rng: np.random.Generator, shape: Sequence[int], epsilon: float) -> np.ndarray:
    """Draw rows of all magnitudes above the root of epsilon, float32.

    Some rows are far from 0 compared with their spread. If a loop subtracts two sums of such a row, no digits are left.

    Args:
        rng: random generator.
        shape: shape of the result; a row is along the last axis.
        epsilon: smallest mean square of a row.
    """
    size = np.sqrt(epsilon) ** rng.uniform(0.0, 1.0, (*shape[:-1], 1))
    mean = np.exp2(rng.uniform(-2.0, 9.0, size.shape)) * np.where(rng.random(size.shape) < 0.5, -1.0, 1.0)
    return (size * (_draw_array(rng, shape) + mean)).astype(np.float32)


def _draw_mask(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Draw a mask that keeps about three quarters of the elements, and the last element of each row.

    A row without elements has no softmax.

    Args:
        rng: random generator.
        shape: shape of the mask; a row is along the last axis.
    """
    mask = rng.random(tuple(shape), np.float32) < 0.75
    mask[..., -1] = True
    return mask


def _draw_places(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Draw positions in a text from 0 to 31, int64 of this shape, so that each occurs several times."""
    return rng.integers(0, 32, tuple(shape))


def _draw_arrays(rng, *shapes):
    """Draw an array of standard normal numbers for each shape."""
    return tuple(_draw_array(rng, shape) for shape in shapes)


def _draw_gather_rows(rng, x, index):
    """Draw a matrix and the indices of the rows to gather.

    Args:
        rng: random generator.
        x: shape of the matrix.
        index: shape of the indices.
    """
    return _draw_array(rng, x), rng.integers(0, x[0], tuple(index))


def _draw_softmax(rng, scores, divisor=1.0, bias=None):
    """Draw scores, a divisor that does not round, and a bias that hides some scores, as for later positions."""
    exact = 2.0 ** round(np.log2(divisor))
    x = _draw_scores(rng, scores) * np.float32(exact)
    return x, exact, bias and np.where(_draw_mask(rng, bias), 0.0, -1e4).astype("f4")


def _draw_softmax_backward(rng, grad, probabilities, divisor=1.0):
    """Draw the gradient of softmax weights, and the weights themselves, from even to peaked rows.

    Args:
        rng: random generator.
        grad: shape of the gradient.
        probabilities: shape of the weights.
        divisor: divisor of the scores.
    """
    weights = _compute_softmax(_draw_scores(rng, probabilities, 6.0).astype(np.float64))[0].astype(np.float32)
    return _draw_array(rng, grad), weights, divisor


def _draw_axes(rng, x):
    """Draw rows of a few different whole numbers, so that the largest number occurs several times."""
    return (rng.integers(-3, 4, tuple(x)).astype(np.float32),)


def _draw_attention(rng, query, key, value, order, places, key_mask, *settings):
    """Draw the arguments of ``attend_chunks``, with scores that are exact in float32.

    Each key has a single power of two. A column of a chunk's values has a single number, too, so that each output shows
    a single weight. The last chunk that a chunk attends to is the chunk itself. Each position occurs several times.
    """
    *mask_settings, dropout_mask, rate, has_normalizer = settings
    rings, chunks, size, depth = query
    keys, values = np.zeros(key, np.float32), np.zeros(value, np.float32)
    chunk, row, column = np.arange(chunks)[:, None], np.arange(size), np.arange(depth)
    keys[:, chunk, row, (row + chunk) % depth] = rng.choice([-2, -1, 1, 2], (rings, chunks, size))
    values[:, chunk, (column + chunk) % size, column] = _draw_array(rng, (rings, chunks, depth))
    return (
        *(_draw_scores(rng, query), keys, values),
        (chunk + np.arange(order[1]) - (order[1] - 1)) % chunks,
        None if places is None else _draw_places(rng, places),
        None if key_mask is None else rng.random(tuple(key_mask)) < 0.75,
        *mask_settings,
        None if dropout_mask is None else rng.random(tuple(dropout_mask)) >= rate,
        *(rate, has_normalizer),
    )


def _draw_attention_backward(rng, *arguments):
    """Draw the arguments of ``attend_chunks`` without its last, and the gradients of its outputs."""
    *forward_arguments, grad, grad_normalizer = arguments
    normalizer_rows = None if grad_normalizer is None else _draw_array(rng, grad_normalizer)
    return *_draw_attention(rng, *forward_arguments, False)[:-1], _draw_array(rng, grad), normalizer_rows


def _draw_cross_entropy(rng, logits, labels):
    """Draw scores of classes and a label for each row.

    Args:
        rng: random generator.
        logits: shape of the scores, (N, classes).
        labels: shape of the labels, (N,).
    """
    return _draw_scores(rng, logits), rng.integers(0, logits[-1], tuple(labels))


def _draw_cross_entropy_backward(rng, grad, logits, labels, normalizers):
    """Draw gradients of the losses, which are 0 in each eighth row, and the forward's input and normalizers.

    Args:
        rng: random generator.
        grad: shape of the gradients, (N,).
        logits: shape of the scores, (N, classes).
        labels: shape of the labels, (N,).
        normalizers: shape of the normalizers, (N, 2).
    """
    scores, classes = _draw_cross_entropy(rng, logits, labels)
    _, total, largest = _compute_softmax(scores.astype(np.float64))
    row_grads = _draw_array(rng, grad)
    row_grads[7::8] = 0.0
    return row_grads, scores, classes, np.concatenate([largest, total], axis=-1).astype(np.float32)


def _draw_add_on_grid(rng, exact, update, rounder, sign):
    """Draw a stream on a grid, and updates that are small or large compared with the grid's distances.

    Args:
        rng: random generator.
        exact: shape of the stream.
        update: shape of the update.
        rounder: number that rounds to the grid if it is added and subtracted.
        sign: 1 to add the update, -1 to subtract it.
    """
    size = np.exp2(rng.uniform(-8.0, 8.0, tuple(update)))
    wide = rng.standard_normal(tuple(exact))
    return (wide + rounder) - rounder, (size * _draw_array(rng, update)).astype(np.float32), rounder, sign


# -- true outputs, in float64


def _compute_softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the softmax of each row of scores, the row's sum of exp(score - largest), and its largest score."""
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights / total, total, largest


def _to_float64(*arrays: np.ndarray) -> list[np.ndarray]:
    """Return each array as float64."""
    return [array.astype(np.float64) for array in arrays]


def _round_once(exact: np.ndarray) -> list[Truth]:
    """Return the true output of a function that rounds once: the unit of an element is its magnitude."""
    return [(exact, np.abs(exact))]


def _round_nothing(exact: np.ndarray) -> list[Truth]:
    """Return the true output of a function that must be exact: the unit of each element is 0."""
    return [(exact.astype(np.float64), np.zeros(exact.shape))]


def _exact_square_sums(*tensors, columns=ONE_SUM):
    """Return the true sums of squares of the blocks of each tensor, in one array.

    Args:
        tensors: the tensors, of any shape.
        columns: number of elements of a block, :data:`models.operations.kernels.BLOCK_COLUMNS`.
    """
    squares = [np.square(x.astype(np.float64)).ravel() for x in tensors]
    return _round_once(np.concatenate([np.add.reduceat(x, np.arange(0, len(x), columns)) for x in squares]))


def _exact_adamw(rates, decays, beta1, beta2, epsilon, factor, *tensors):
    """Return the true parameters, gradients and states after a step of AdamW.

    Stored numbers are rounded once, as are the terms of a moment. The unit of a parameter also has the roundings of the
    division and the root.

    Args:
        rates: learning rate of each parameter.
        decays: weight decay of each parameter.
        beta1: decay rate of the mean gradient.
        beta2: decay rate of the mean squared gradient.
        epsilon: number added to the root of the mean squared gradient.
        factor: clipping factor of all gradients.
        *tensors: parameter, gradient, both moments and both powers of beta, for each parameter in turn.
    """
    beta1, beta2 = (np.float64(np.float32(beta)) for beta in (beta1, beta2))
    truths: list[Truth] = []
    for number, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
        weight, grad, mean, square, power1, power2 = _to_float64(*tensors[6 * number : 6 * number + 6])
        clipped_grad = np.float32(factor) * grad
        mean_unit = beta1 * np.abs(mean) + (1 - beta1) * np.abs(clipped_grad)
        mean = beta1 * mean + (1 - beta1) * clipped_grad
        square = beta2 * square + (1 - beta2) * np.square(clipped_grad)
        root, rate = np.sqrt(square / (1 - power2)) + epsilon, np.float64(rate)
        update_unit = rate / (1 - power1) * mean_unit / root + rate * decay * np.abs(weight)
        new = weight - rate * decay * weight - rate / (1 - power1) * mean / root
        truths += [(new, np.abs(new) + update_unit), *_round_nothing(grad), (mean, mean_unit), (square, 2 * square)]
        truths += [*_round_once(power1 * beta1), *_round_once(power2 * beta2)]
    return truths


def _draw_adamw(rng, rates, decays, beta1, beta2, epsilon, factor, *shapes):
    """Draw each parameter with its gradient and its optimizer state after some steps.

    Args:
        rng: random generator.
        rates: learning rate of each parameter.
        decays: weight decay of each parameter.
        beta1: decay rate of the mean gradient.
        beta2: decay rate of the mean squared gradient.
        epsilon: number added to the root of the mean squared gradient.
        factor: clipping factor of all gradients.
        *shapes: shapes of the six tensors of each parameter in turn: parameter, gradient, moments and powers.
    """
    tensors = []
    for number in range(len(rates)):
        weight, grad, mean, square, power1, power2 = shapes[6 * number : 6 * number + 6]
        steps = np.float32(rng.integers(1, 20))
        size = np.float32(np.exp2(rng.uniform(-20.0, 0.0)))
        tensors += [_draw_array(rng, weight), size * _draw_array(rng, grad), size * _draw_array(rng, mean)]
        tensors += [np.square(size * _draw_array(rng, square))]
        tensors += [np.full(power1, np.float32(beta1) ** steps), np.full(power2, np.float32(beta2) ** steps)]
    return rates, decays, beta1, beta2, epsilon, factor, *tensors


def _exact_gather_rows(x, index):
    """Return the true sums of the gathered rows. A row that is only copied is exact."""
    parts = x.astype(np.float64)[np.atleast_2d(index)]
    return [(parts.sum(0), np.abs(parts).sum(0) * (len(parts) > 1))]


def _exact_scale_columns_backward(grad, factors):
    """Return the true gradient of the table of ``scale_columns``."""
    parts = grad.astype(np.float64) * factors[:, None, :, None]
    return [(parts.sum(0), np.abs(parts).sum(0))]


def _normalize_rows(x: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows with mean 0 and variance 1, the scale factor of each row, and the rows' units.

    The rounding of a mean has the magnitude of its terms, and is an error of each number near the mean.
    """
    mean = x.mean(-1, keepdims=True)
    scale = 1.0 / np.sqrt(np.square(x - mean).mean(-1, keepdims=True) + epsilon)
    norm_rows = (x - mean) * scale
    return norm_rows, scale, np.abs(norm_rows) + np.abs(x).mean(-1, keepdims=True) * scale


def _exact_layer_norm(x, gain, bias, epsilon):
    """Return the true layer norm of the rows.

    Args:
        x: rows, (rows, width).
        gain: factors of the columns, (width,).
        bias: bias of the columns, (width,).
        epsilon: number added to the variance.
    """
    x, gain, bias = _to_float64(x, gain, bias)
    norm_rows, _, unit = _normalize_rows(x, epsilon)
    return [(norm_rows * gain + bias, unit * np.abs(gain) + np.abs(bias))]


def _exact_layer_norm_backward(grad, x, gain, epsilon, rows=128):
    """Return the true gradient of a layer norm's input, and of gain and bias for each block of rows.

    Args:
        grad: gradient of the output, (..., width).
        x: input, (..., width).
        gain: gain, (width,).
        epsilon: epsilon of the norm.
        rows: number of rows of a block, :data:`models.operations.kernels.BLOCK_ROWS`.
    """
    shape = x.shape
    grad, x, gain = (array.reshape(-1, array.shape[-1]) for array in _to_float64(grad, x, gain))
    norm_rows, scale, unit = _normalize_rows(x, epsilon)
    inner = grad * gain
    projection = (inner * norm_rows).mean(-1, keepdims=True)
    size = np.abs(inner)
    x_unit = size + size.mean(-1, keepdims=True)
    x_unit += unit * np.abs(projection) + np.abs(norm_rows) * (size * unit).mean(-1, keepdims=True)
    x_grad = (inner - inner.mean(-1, keepdims=True) - norm_rows * projection) * scale
    starts = np.arange(0, len(x), rows)
    sums = np.concatenate([np.add.reduceat(part, starts) for part in (grad * norm_rows, grad)], axis=1)
    units = np.concatenate([np.add.reduceat(part, starts) for part in (np.abs(grad) * unit, np.abs(grad))], axis=1)
    return [(x_grad.reshape(shape), (x_unit * scale).reshape(shape)), (sums, units)]


def _exact_add_on_grid(exact, update, rounder, sign):
    """Return the true sum of a stream and an update rounded to the grid, in float64 and in float32.

    Args:
        exact: stream on the grid, float64.
        update: float32 update of the stream.
        rounder: number that rounds to the grid if it is added and subtracted.
        sign: 1 to add the update, -1 to subtract it.
    """
    total = exact + sign * ((update.astype(np.float64) + rounder) - rounder)
    return [(total, np.zeros_like(total)), (total.astype(np.float32).astype(np.float64), np.zeros_like(total))]


def _exact_softmax(scores, divisor=1.0, bias=None):
    """Return the true softmax of scores / divisor + bias."""
    scores = scores.astype(np.float64) / divisor
    weights = _compute_softmax(scores if bias is None else scores + bias)[0]
    return [(weights, weights * (1.0 + scores.shape[-1] / ONE_SUM) + LEAST)]


def _softmax_gradient(grad, weights, unit, extra_grad):
    """Return the gradient of rows of scores with its units, given the gradient of their softmax.

    Rounded weights do not sum to 1. A row with a single weight of 1 has the full rounding of its mean.

    Args:
        grad: gradient of the weights, (..., columns).
        weights: softmax of the scores, (..., columns).
        unit: units of ``grad``, (..., columns).
        extra_grad: gradient of the row's normalizer, (..., 1).
    """
    mean = (grad * weights).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    deviation = grad - mean
    unit = unit + (weights * unit).sum(-1, keepdims=True)
    unit = unit + np.abs(deviation) + np.abs(extra_grad) + (weights * np.abs(deviation)).sum(-1, keepdims=True)
    is_one = weights.max(-1, keepdims=True) > 1.0 - 2.0 * ROUNDING
    unit = unit + np.abs(mean) * np.where(is_one, 1.0, 2.0 * ROUNDING)
    return weights * (deviation + extra_grad), weights * unit + LEAST


def _exact_softmax_backward(grad, weights, divisor=1.0):
    """Return the true gradient of the scores of ``softmax``.

    Args:
        grad: gradient of the weights.
        weights: softmax weights; a row is along the last axis.
        divisor: divisor of the scores.
    """
    grad, weights = _to_float64(grad, weights)
    exact, unit = _softmax_gradient(grad, weights, np.zeros_like(grad), np.zeros(1))
    return [(exact / divisor, (unit + np.abs(exact)) / divisor + LEAST)]


def _iterate_chunks(query, key, value, order, places, key_mask, *settings):
    """Yield the intermediate results of chunk attention in float64, for some chunks at a time.

    They are the indices of the chunks, queries, keys, values, scores, the mask of constant scores, and dropout factors.
    Queries, keys and values are (rings, chunks, width, depth). Scores are constant for masked keys and for positions
    with themselves.
    """
    is_causal, has_self_score, masked_score, self_score, dropout_mask, rate = settings
    rings, chunks, size, depth = query.shape
    num_chunks = max(1, MAX_SCORES // (rings * size * size * order.shape[1]))
    scale = np.float64(np.float32(1.0 / (1.0 - rate)))
    for begin in range(0, chunks, num_chunks):
        indices = np.arange(begin, min(chunks, begin + num_chunks))
        key_shape = [rings, len(indices), -1]
        queries, keys, values = _to_float64(query[:, indices], *(array[:, order[indices]] for array in (key, value)))
        keys, values = keys.reshape([*key_shape, depth]), values.reshape([*key_shape, depth])
        scores = queries @ keys.swapaxes(-1, -2)
        is_masked, is_self = np.zeros(scores.shape, bool), np.zeros(scores.shape, bool)
        if key_mask is not None:
            is_masked |= ~key_mask[:, order[indices]].reshape(key_shape)[:, :, None]
        if places is not None:
            query_places = places[:, indices][..., None]
            key_places = places[:, order[indices]].reshape(key_shape)[:, :, None]
            is_masked = is_masked | (is_causal and query_places < key_places)
            is_self = is_self | (has_self_score and query_places == key_places)
        scores = np.where(is_self, np.float32(self_score), np.where(is_masked, np.float32(masked_score), scores))
        dropout = 1.0 if dropout_mask is None else dropout_mask[:, indices] * scale
        yield indices, queries, keys, values, scores, is_masked | is_self, dropout


def _exact_attention(*arguments):
    """Return the true output of chunk attention, and its logarithmic normalizers if they are requested."""
    *chunk_arguments, has_normalizer = arguments
    shape = chunk_arguments[0].shape
    out, unit = np.zeros(shape), np.zeros(shape)
    normalizer, normalizer_unit = np.zeros([*shape[:-1], 1]), np.zeros([*shape[:-1], 1])
    for indices, _, _, values, scores, _, dropout in _iterate_chunks(*chunk_arguments):
        weights, total, largest = _compute_softmax(scores)
        out[:, indices] = (weights * dropout) @ values
        weight_unit = weights * (1.0 + scores.shape[-1] / ONE_SUM) * dropout
        unit[:, indices] = weight_unit @ np.abs(values) + LEAST
        normalizer[:, indices] = largest + np.log(total)
        normalizer_unit[:, indices] = np.abs(largest) + np.log(total) + 1.0
    return [(out, unit), *([(normalizer, normalizer_unit)] if has_normalizer else [])]


def _exact_attention_backward(*arguments):
    """Return the true gradients of query, key and value of chunk attention."""
    *chunk_arguments, grad, grad_normalizer = arguments
    order = chunk_arguments[3]
    (query_grad, query_unit), (key_grad, key_unit), (value_grad, value_unit) = (
        (np.zeros(array.shape), np.zeros(array.shape)) for array in chunk_arguments[:3]
    )
    for indices, queries, keys, values, scores, is_masked, dropout in _iterate_chunks(*chunk_arguments):
        weights, own_grad = _compute_softmax(scores)[0], grad[:, indices].astype(np.float64)
        extra_grad = np.zeros(1) if grad_normalizer is None else grad_normalizer[:, indices].astype(np.float64)
        values_t = values.swapaxes(-1, -2)
        weight_grad, factor_unit = (own_grad @ values_t) * dropout, (np.abs(own_grad) @ np.abs(values_t)) * dropout
        gradient = _softmax_gradient(weight_grad, weights, factor_unit, extra_grad)
        score_grad, score_unit = (np.where(is_masked, 0.0, array) for array in gradient)
        query_grad[:, indices], query_unit[:, indices] = score_grad @ keys, score_unit @ np.abs(keys) + LEAST
        for total, units, factor, factor_unit, operand in (
            (key_grad, key_unit, score_grad, score_unit, queries),
            (value_grad, value_unit, weights * dropout, weights * dropout, own_grad),
        ):
            factor, factor_unit = factor.swapaxes(-1, -2), factor_unit.swapaxes(-1, -2)
            product = factor @ operand, np.sqrt(factor_unit**2 @ operand**2) + np.abs(factor) @ np.abs(operand) + LEAST
            for part, key_chunks in enumerate(order[indices].T):
                rows = slice(part * operand.shape[2], (part + 1) * operand.shape[2])
                total[:, key_chunks] += product[0][:, :, rows]
                units[:, key_chunks] += product[1][:, :, rows]
    return [(query_grad, query_unit), (key_grad, key_unit), (value_grad, value_unit)]


def _exact_cross_entropy(logits, labels):
    """Return the true losses, (N,), and the normalizers, (N, 2).

    The normalizers of a row are its largest score and the sum of exp(score - largest).

    Args:
        logits: scores, (N, classes).
        labels: class of each row, (N,).
    """
    logits = logits.astype(np.float64)
    _, total, largest = _compute_softmax(logits)
    label_scores = np.take_along_axis(logits, labels[:, None], 1)
    loss = (np.log(total) + (largest - label_scores))[:, 0]
    return [
        (loss, np.abs(loss) + 1.0),
        (np.concatenate([largest, total], axis=1), np.concatenate([np.zeros_like(largest), total], axis=1)),
    ]


def _exact_cross_entropy_backward(grad, logits, labels, normalizers):
    """Return the true gradient of the scores of ``cross_entropy``.

    Args:
        grad: gradient of each loss, (N,).
        logits: scores, (N, classes).
        labels: class of each row, (N,).
        normalizers: largest score and sum of exp(score - largest) of each row, (N, 2).
    """
    grad, logits, normalizers = _to_float64(grad, logits, normalizers)
    exact = np.exp(logits - normalizers[:, :1]) * (grad[:, None] / normalizers[:, 1:])
    unit = np.abs(exact) + np.where(grad[:, None], LEAST, 0.0)
    rows = np.arange(len(labels))
    exact[rows, labels] -= grad
    unit[rows, labels] += np.abs(grad)
    return [(exact, unit)]


def _exact_keys(x, epsilon, factor):
    """Return the true rows of x, multiplied by factor / sqrt(mean square + epsilon)."""
    x = x.astype(np.float64)
    return _round_once(x * (factor / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon)))


def _exact_keys_backward(grad, x, epsilon, factor):
    """Return the true gradient of the input of ``keys``.

    Args:
        grad: gradient of the output.
        x: input of ``keys``.
        epsilon: number added to the mean square.
        factor: factor of the result.
    """
    grad, x = _to_float64(grad, x)
    square = np.square(x).mean(-1, keepdims=True) + epsilon
    scale = factor / np.sqrt(square)
    projection, size = (product.mean(-1, keepdims=True) / square for product in (grad * x, np.abs(grad * x)))
    return [((grad - x * projection) * scale, (np.abs(grad) + np.abs(x) * size) * scale)]


#: Number of tokens of the largest vocabulary. Only such long rows show errors of sums and of exp.
LARGE_VOCABULARY = 246_534
#: Shape of the queries, keys and values of attention of chunks: rows, chunks, positions of a chunk, width of a head.
CHUNKS = [8, 5, 16, 16]
#: Arguments of a call of local and of LSH attention up to the dropout rate. A chunk attends to itself and its neighbor.
LOCAL_ATTENTION = (*3 * [CHUNKS], [5, 2], CHUNKS[:3], CHUNKS[:3], True, False, -1e9, -1e5, [*CHUNKS[:3], 32], 0.1)
LSH_ATTENTION = (*3 * [CHUNKS], [5, 2], CHUNKS[:3], None, True, True, -1e9, -1e5, None, 0.0)
#: Name of a function of :mod:`models.operations.compiled` -> check of its accuracy. The calls are large enough for
#: several threads (:data:`models.operations.loop_code.MIN_PARALLEL_WORK`).
CHECKS = {
    "keep": LoopCheck(
        "keep",
        (([300, 64], [300, 64], 1 / 0.9),),
        lambda rng, x, mask, scale: (_draw_array(rng, x), rng.random(tuple(mask)) < 0.8, scale),
        lambda x, mask, scale: _round_once(x.astype(np.float64) * mask * scale),
    ),
    "relu": LoopCheck("rectify", (([300, 64],),), _draw_arrays, lambda x: _round_nothing(np.maximum(x, 0.0))),
    "relu_backward": LoopCheck(
        "rectify",
        (([300, 64], [300, 64]),),
        lambda rng, grad, relu: (_draw_array(rng, grad), np.maximum(_draw_array(rng, relu), np.float32(0.0))),
        lambda grad, relu: _round_nothing(np.where(relu > 0.0, grad, 0.0)),
    ),
    "square_sums": LoopCheck("square_sums", (([100, 200], [48]),), _draw_arrays, _exact_square_sums),
    "adamw_": LoopCheck(
        "adamw",
        (([1e-3, 2e-3], [0.1, 0.0], 0.9, 0.999, 1e-8, 0.3, *4 * [[320, 64]], [1], [1], *4 * [[48]], [1], [1]),),
        _draw_adamw,
        _exact_adamw,
    ),
    "add_row_": LoopCheck(
        "add_row", (([300, 64], [64]),), _draw_arrays, lambda x, row: _round_once(x.astype(np.float64) + row)
    ),
    "gather_rows": LoopCheck(
        "gather_rows", (([300, 64], [300]), ([300, 64], [4, 300])), _draw_gather_rows, _exact_gather_rows
    ),
    "scale_columns": LoopCheck(
        "scale_columns",
        (([16, 20, 24], [3, 20]),),
        _draw_arrays,
        lambda table, factors: _round_once(table.astype(np.float64) * factors[:, None, :, None]),
    ),
    "scale_columns_backward": LoopCheck(
        "scale_columns_backward", (([3, 16, 20, 24], [3, 20]),), _draw_arrays, _exact_scale_columns_backward
    ),
    "layer_norm": LoopCheck(
        "norm_rows",
        (([300, 64], [64], [64], 1e-12), ([40, 1280], [1280], [1280], 1e-6)),
        lambda rng, x, gain, bias, epsilon: (_draw_rows(rng, x, epsilon), *_draw_arrays(rng, gain, bias), epsilon),
        _exact_layer_norm,
    ),
    "layer_norm_backward": LoopCheck(
        "norm_rows_backward",
        (([300, 64], [300, 64], [64], 1e-12), ([40, 1280], [40, 1280], [1280], 1e-6)),
        lambda rng, grad, x, gain, epsilon: (
            _draw_array(rng, grad),
            _draw_rows(rng, x, epsilon),
            _draw_array(rng, gain),
            epsilon,
        ),
        _exact_layer_norm_backward,
    ),
    "add_on_grid": LoopCheck(
        "add_on_grid",
        (([300, 64], [300, 64], 1.5 * 2.0**30, 1.0), ([300, 64], [300, 64], 1.5 * 2.0**30, -1.0)),
        _draw_add_on_grid,
        _exact_add_on_grid,
    ),
    "nearest_axes": LoopCheck(
        "nearest_axes", (([6, 100, 32],),), _draw_axes, lambda x: _round_nothing(np.concatenate([x, -x], -1).argmax(-1))
    ),
    "attend_chunks": LoopCheck(
        "attend_chunks", ((*LOCAL_ATTENTION, False), (*LSH_ATTENTION, True)), _draw_attention, _exact_attention
    ),
    "attend_chunks_backward": LoopCheck(
        "attend_chunks_backward",
        ((*LOCAL_ATTENTION, CHUNKS, None), (*LSH_ATTENTION, CHUNKS, [*CHUNKS[:-1], 1])),
        _draw_attention_backward,
        _exact_attention_backward,
    ),
    "softmax": LoopCheck(
        "softmax_rows", (([300, 64],), ([2, 4, 54, 54], 8.0, [2, 1, 54, 54])), _draw_softmax, _exact_softmax
    ),
    "softmax_backward": LoopCheck(
        "softmax_rows_backward",
        (([300, 64], [300, 64]), ([2, 4, 54, 54], [2, 4, 54, 54], 8.0)),
        _draw_softmax_backward,
        _exact_softmax_backward,
    ),
    "cross_entropy": LoopCheck(
        "cross_entropy_rows",
        (([96, 300], [96]), ([2, LARGE_VOCABULARY], [2])),
        _draw_cross_entropy,
        _exact_cross_entropy,
    ),
    "cross_entropy_backward": LoopCheck(
        "cross_entropy_rows_backward",
        (([96], [96, 300], [96], [96, 2]), ([2], [2, LARGE_VOCABULARY], [2], [2, 2])),
        _draw_cross_entropy_backward,
        _exact_cross_entropy_backward,
    ),
    "keys": LoopCheck(
        "key_rows",
        (([8, 160, 16], 1e-6, 0.25),),
        lambda rng, x, epsilon, factor: (_draw_rows(rng, x, epsilon), epsilon, factor),
        _exact_keys,
    ),
    "keys_backward": LoopCheck(
        "key_rows_backward",
        (([8, 160, 16], [8, 160, 16], 1e-6, 0.25),),
        lambda rng, grad, x, epsilon, factor: (_draw_array(rng, grad), _draw_rows(rng, x, epsilon), epsilon, factor),
        _exact_keys_backward,
    ),
}
