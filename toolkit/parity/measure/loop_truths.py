"""Input for each compiled loop by itself, drawn so that its condition is known, and what should come out, in float64.

For each element a *unit* is one float32 rounding of what is added up there. All is NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

#: Float32's unit of rounding.
ROUNDING = 2.0**-24
#: Least error of a number, in roundings of itself: below 2^-126 float32 has fewer digits.
LEAST = 2.0**-125
#: Columns whose sum, taken in one go, adds one unit of error.
ONE_SUM = 4096
#: Numbers that a loop is tried on at most, taken from the first examples.
MOST_NUMBERS = 2**19

#: An output as it should be, and the units of its elements; 0 where it must be that number.
Truth = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class LoopCheck:
    """Test of a function of :mod:`models.operations.compiled`.

    Attributes:
        loop: that it runs, of one of :data:`models.operations.loop_code.LOOP_FILES`.
        examples: its arguments with an example, or a row, for each index of their first axis.
        draw: gives the arguments, from a generator and what it was called with.
        exact: gives what each output should be.
    """

    loop: str
    examples: tuple[int, ...]
    draw: Callable[..., tuple]
    exact: Callable[..., list[Truth]]


# -- what is drawn


def _normal(draw: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return draw.standard_normal(tuple(shape), np.float32)


def _scores(draw: np.random.Generator, shape: Sequence[int], most: float = 4.0) -> np.ndarray:
    """Rows from nearly even to peaked, on a grid: their distance below the largest is exact in float32, so an error is
    that of exp and of the sum."""
    spread = np.exp2(draw.uniform(-2.0, most, (*shape[:-1], 1)))
    return (np.rint(_normal(draw, shape) * spread * 2.0**12) / 2.0**12).astype(np.float32)


def _rows(draw: np.random.Generator, shape: Sequence[int], epsilon: float) -> np.ndarray:
    """Rows of all sizes from that of epsilon on. Some lie far from 0 compared with their spread: the difference of two
    sums of these has no digits left."""
    size = np.sqrt(epsilon) ** draw.uniform(0.0, 1.0, (*shape[:-1], 1))
    mean = np.exp2(draw.uniform(-2.0, 9.0, size.shape)) * np.where(draw.random(size.shape) < 0.5, -1.0, 1.0)
    return (size * (_normal(draw, shape) + mean)).astype(np.float32)


def _kept(draw: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """A mask. The last of a row is kept: one that sees nothing has no softmax."""
    kept = draw.random(tuple(shape), np.float32) < 0.75
    kept[..., -1] = True
    return kept


def _places(draw: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return draw.integers(0, 32, tuple(shape))


def _draw_normal(draw, *shapes):
    return tuple(_normal(draw, shape) for shape in shapes)


def _draw_gather_rows(draw, x, index):
    return _normal(draw, x), draw.integers(0, x[0], tuple(index))


def _draw_softmax(draw, scores, divisor=1.0, bias=None):
    """A divisor that does not round, and a bias that hides some, as a later position's."""
    exact = 2.0 ** round(np.log2(divisor))
    return (
        _scores(draw, scores) * np.float32(exact),
        exact,
        bias and np.where(_kept(draw, bias), 0.0, -1e4).astype("f4"),
    )


def _draw_softmax_backward(draw, grad, probabilities, divisor=1.0):
    weights = _weights(_scores(draw, probabilities, 6.0).astype(np.float64))[0].astype(np.float32)
    return _normal(draw, grad), weights, divisor


def _draw_axes(draw, x):
    """Few numbers, so that the largest occurs several times."""
    return (draw.integers(-3, 4, tuple(x)).astype(np.float32),)


def _draw_attention(draw, query, key, value, order, places, kept, *given):
    """A key has one number, a power of two, so scores are exact in float32. A column of a chunk's values has one, too,
    so a weight is seen by itself. Each chunk sees itself last; places occur several times."""
    *masks, drawn, rate, with_normaliser = given
    rings, chunks, size, depth = query
    keys, values = np.zeros(key, np.float32), np.zeros(value, np.float32)
    chunk, row, column = np.arange(chunks)[:, None], np.arange(size), np.arange(depth)
    keys[:, chunk, row, (row + chunk) % depth] = draw.choice([-2, -1, 1, 2], (rings, chunks, size))
    values[:, chunk, (column + chunk) % size, column] = _normal(draw, (rings, chunks, depth))
    return (
        *(_scores(draw, query), keys, values),
        (chunk + np.arange(order[1]) - (order[1] - 1)) % chunks,
        None if places is None else _places(draw, places),
        None if kept is None else draw.random(tuple(kept)) < 0.75,
        *masks,
        None if drawn is None else draw.random(tuple(drawn)) >= rate,
        *(rate, with_normaliser),
    )


def _draw_attention_backward(draw, *given):
    *shared, grad, grad_normaliser = given
    of_normaliser = None if grad_normaliser is None else _normal(draw, grad_normaliser)
    return *_draw_attention(draw, *shared, False)[:-1], _normal(draw, grad), of_normaliser


def _draw_cross_entropy(draw, logits, labels):
    return _scores(draw, logits), draw.integers(0, logits[-1], tuple(labels))


def _draw_cross_entropy_backward(draw, grad, logits, labels, normalisers):
    """On every eighth row nothing depends."""
    scores, classes = _draw_cross_entropy(draw, logits, labels)
    _, total, largest = _weights(scores.astype(np.float64))
    weighed = _normal(draw, grad)
    weighed[7::8] = 0.0
    return weighed, scores, classes, np.concatenate([largest, total], axis=-1).astype(np.float32)


def _draw_add_on_grid(draw, exact, update, rounder, sign):
    """Updates small and large beside the grid."""
    size = np.exp2(draw.uniform(-8.0, 8.0, tuple(update)))
    wide = draw.standard_normal(tuple(exact))
    return (wide + rounder) - rounder, (size * _normal(draw, update)).astype(np.float32), rounder, sign


# -- what comes out, in float64


def _weights(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For rows of scores in float64: softmax, the sum of exp(score - largest), and the largest."""
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights / total, total, largest


def _double(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


def _itself(exact: np.ndarray) -> list[Truth]:
    """One output whose unit is its own size: nothing is added up."""
    return [(exact, np.abs(exact))]


def _exactly(exact: np.ndarray) -> list[Truth]:
    """One output that may not be rounded."""
    return [(exact.astype(np.float64), np.zeros(exact.shape))]


def _square_sums(*tensors, columns=ONE_SUM):
    """``columns`` are those of a block, :data:`models.operations.kernels.BLOCK_COLUMNS`."""
    squares = [np.square(x.astype(np.float64)).ravel() for x in tensors]
    return _itself(np.concatenate([np.add.reduceat(own, np.arange(0, len(own), columns)) for own in squares]))


def _adamw(rates, decays, beta1, beta2, epsilon, factor, *tensors):
    """What is stored is rounded once, and a moment's terms; an update also divides and takes a root."""
    beta1, beta2 = (np.float64(np.float32(beta)) for beta in (beta1, beta2))
    truths: list[Truth] = []
    for number, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
        weight, grad, mean, square, power1, power2 = _double(*tensors[6 * number : 6 * number + 6])
        clipped = np.float32(factor) * grad
        mean_unit = beta1 * np.abs(mean) + (1 - beta1) * np.abs(clipped)
        mean = beta1 * mean + (1 - beta1) * clipped
        square = beta2 * square + (1 - beta2) * np.square(clipped)
        root, rate = np.sqrt(square / (1 - power2)) + epsilon, np.float64(rate)
        moved = rate / (1 - power1) * mean_unit / root + rate * decay * np.abs(weight)
        new = weight - rate * decay * weight - rate / (1 - power1) * mean / root
        truths += [(new, np.abs(new) + moved), *_exactly(grad), (mean, mean_unit), (square, 2 * square)]
        truths += [*_itself(power1 * beta1), *_itself(power2 * beta2)]
    return truths


def _draw_adamw(draw, rates, decays, beta1, beta2, epsilon, factor, *shapes):
    """Of each parameter: itself, its gradient, and its state after some steps."""
    drawn = []
    for number in range(len(rates)):
        weight, grad, mean, square, power1, power2 = shapes[6 * number : 6 * number + 6]
        steps = np.float32(draw.integers(1, 20))
        size = np.float32(np.exp2(draw.uniform(-20.0, 0.0)))
        drawn += [_normal(draw, weight), size * _normal(draw, grad), size * _normal(draw, mean)]
        drawn += [np.square(size * _normal(draw, square))]
        drawn += [np.full(power1, np.float32(beta1) ** steps), np.full(power2, np.float32(beta2) ** steps)]
    return rates, decays, beta1, beta2, epsilon, factor, *drawn


def _gather_rows(x, index):
    """A row that is only copied is exact."""
    parts = x.astype(np.float64)[np.atleast_2d(index)]
    return [(parts.sum(0), np.abs(parts).sum(0) * (len(parts) > 1))]


def _scale_columns_backward(grad, factors):
    parts = grad.astype(np.float64) * factors[:, None, :, None]
    return [(parts.sum(0), np.abs(parts).sum(0))]


def _normed(x: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in float64 with mean 0 and variance 1, their scale factor, and the units of the former: a mean is rounded at
    the size of its terms, and takes as much from all that lies near it."""
    mean = x.mean(-1, keepdims=True)
    scale = 1.0 / np.sqrt(np.square(x - mean).mean(-1, keepdims=True) + epsilon)
    normed = (x - mean) * scale
    return normed, scale, np.abs(normed) + np.abs(x).mean(-1, keepdims=True) * scale


def _layer_norm(x, gain, bias, epsilon):
    x, gain, bias = _double(x, gain, bias)
    normed, _, unit = _normed(x, epsilon)
    return [(normed * gain + bias, unit * np.abs(gain) + np.abs(bias))]


def _layer_norm_backward(grad, x, gain, epsilon, rows=128):
    """``rows`` are those of a block of the sums, :data:`models.operations.kernels.BLOCK_ROWS`."""
    shape = x.shape
    grad, x, gain = (array.reshape(-1, array.shape[-1]) for array in _double(grad, x, gain))
    normed, scale, unit = _normed(x, epsilon)
    inner = grad * gain
    along = (inner * normed).mean(-1, keepdims=True)
    size = np.abs(inner)
    off = size + size.mean(-1, keepdims=True)
    off += unit * np.abs(along) + np.abs(normed) * (size * unit).mean(-1, keepdims=True)
    of_x = (inner - inner.mean(-1, keepdims=True) - normed * along) * scale
    begins = np.arange(0, len(x), rows)
    sums = np.concatenate([np.add.reduceat(part, begins) for part in (grad * normed, grad)], axis=1)
    units = np.concatenate([np.add.reduceat(part, begins) for part in (np.abs(grad) * unit, np.abs(grad))], axis=1)
    return [(of_x.reshape(shape), (off * scale).reshape(shape)), (sums, units)]


def _add_on_grid(exact, update, rounder, sign):
    total = exact + sign * ((update.astype(np.float64) + rounder) - rounder)
    return [(total, np.zeros_like(total)), (total.astype(np.float32).astype(np.float64), np.zeros_like(total))]


def _softmax(scores, divisor=1.0, bias=None):
    scores = scores.astype(np.float64) / divisor
    weights = _weights(scores if bias is None else scores + bias)[0]
    return [(weights, weights * (1.0 + scores.shape[-1] / ONE_SUM) + LEAST)]


def _softmax_gradient(grad, weights, unit, beside):
    """The gradient of rows of scores, and its units, given those of ``grad``. Rounded weights do not add up to 1. A row
    of one weight of 1 is not corrected for its mean's rounding."""
    mean = (grad * weights).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    apart = grad - mean
    unit = unit + (weights * unit).sum(-1, keepdims=True)
    unit = unit + np.abs(apart) + np.abs(beside) + (weights * np.abs(apart)).sum(-1, keepdims=True)
    is_one = weights.max(-1, keepdims=True) > 1.0 - 2.0 * ROUNDING
    unit = unit + np.abs(mean) * np.where(is_one, 1.0, 2.0 * ROUNDING)
    return weights * (apart + beside), weights * unit + LEAST


def _softmax_backward(grad, weights, divisor=1.0):
    grad, weights = _double(grad, weights)
    exact, unit = _softmax_gradient(grad, weights, np.zeros_like(grad), np.zeros(1))
    return [(exact / divisor, (unit + np.abs(exact)) / divisor + LEAST)]


def _chunks(query, key, value, order, places, kept, causal, itself, masked, self_masked, drawn, rate):
    """For some chunks at a time: which they are, what they see, (rings, chunks, width, depth), and their scores, with
    where these are hidden, and what dropout makes of a weight."""
    rings, chunks, size, depth = query.shape
    few = max(1, MOST_NUMBERS // (rings * size * size * order.shape[1]))
    scale = np.float64(np.float32(1.0 / (1.0 - rate)))
    for begin in range(0, chunks, few):
        some = np.arange(begin, min(chunks, begin + few))
        seen = [rings, len(some), -1]
        asked, keys, values = _double(query[:, some], *(one[:, order[some]] for one in (key, value)))
        keys, values = keys.reshape([*seen, depth]), values.reshape([*seen, depth])
        scores = asked @ keys.swapaxes(-1, -2)
        hidden, own = np.zeros(scores.shape, bool), np.zeros(scores.shape, bool)
        if kept is not None:
            hidden |= ~kept[:, order[some]].reshape(seen)[:, :, None]
        if places is not None:
            place, others = places[:, some][..., None], places[:, order[some]].reshape(seen)[:, :, None]
            hidden, own = hidden | (causal and place < others), own | (itself and place == others)
        scores = np.where(own, np.float32(self_masked), np.where(hidden, np.float32(masked), scores))
        passed = 1.0 if drawn is None else drawn[:, some] * scale
        yield some, asked, keys, values, scores, hidden | own, passed


def _attention(*given):
    *shared, with_normaliser = given
    shape = shared[0].shape
    out, unit = np.zeros(shape), np.zeros(shape)
    normaliser, of_normaliser = np.zeros([*shape[:-1], 1]), np.zeros([*shape[:-1], 1])
    for some, _, _, values, scores, _, passed in _chunks(*shared):
        weights, total, largest = _weights(scores)
        out[:, some] = (weights * passed) @ values
        off = weights * (1.0 + scores.shape[-1] / ONE_SUM) * passed
        unit[:, some] = off @ np.abs(values) + LEAST
        normaliser[:, some] = largest + np.log(total)
        of_normaliser[:, some] = np.abs(largest) + np.log(total) + 1.0
    return [(out, unit), *([(normaliser, of_normaliser)] if with_normaliser else [])]


def _attention_backward(*given):
    *shared, grad, grad_normaliser = given
    order = shared[3]
    (of_query, query_unit), (of_key, key_unit), (of_value, value_unit) = (
        (np.zeros(one.shape), np.zeros(one.shape)) for one in shared[:3]
    )
    for some, asked, keys, values, scores, hidden, passed in _chunks(*shared):
        weights, own = _weights(scores)[0], grad[:, some].astype(np.float64)
        beside = np.zeros(1) if grad_normaliser is None else grad_normaliser[:, some].astype(np.float64)
        turned = values.swapaxes(-1, -2)
        passed_on, off = (own @ turned) * passed, (np.abs(own) @ np.abs(turned)) * passed
        apart, unit = (np.where(hidden, 0.0, one) for one in _softmax_gradient(passed_on, weights, off, beside))
        of_query[:, some], query_unit[:, some] = apart @ keys, unit @ np.abs(keys) + LEAST
        for total, units, moved, off, right in (
            (of_key, key_unit, apart, unit, asked),
            (of_value, value_unit, weights * passed, weights * passed, own),
        ):
            moved, off = moved.swapaxes(-1, -2), off.swapaxes(-1, -2)
            found = moved @ right, np.sqrt(off**2 @ right**2) + np.abs(moved) @ np.abs(right) + LEAST
            for part, seen in enumerate(order[some].T):
                rows = slice(part * right.shape[2], (part + 1) * right.shape[2])
                total[:, seen] += found[0][:, :, rows]
                units[:, seen] += found[1][:, :, rows]
    return [(of_query, query_unit), (of_key, key_unit), (of_value, value_unit)]


def _cross_entropy(logits, labels):
    logits = logits.astype(np.float64)
    _, total, largest = _weights(logits)
    own = np.take_along_axis(logits, labels[:, None], 1)
    loss = (np.log(total) + (largest - own))[:, 0]
    return [
        (loss, np.abs(loss) + 1.0),
        (np.concatenate([largest, total], axis=1), np.concatenate([np.zeros_like(largest), total], axis=1)),
    ]


def _cross_entropy_backward(grad, logits, labels, normalisers):
    grad, logits, normalisers = _double(grad, logits, normalisers)
    exact = np.exp(logits - normalisers[:, :1]) * (grad[:, None] / normalisers[:, 1:])
    unit = np.abs(exact) + np.where(grad[:, None], LEAST, 0.0)
    rows = np.arange(len(labels))
    exact[rows, labels] -= grad
    unit[rows, labels] += np.abs(grad)
    return [(exact, unit)]


def _keys(x, epsilon, factor):
    x = x.astype(np.float64)
    return _itself(x * (factor / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon)))


def _keys_backward(grad, x, epsilon, factor):
    grad, x = _double(grad, x)
    square = np.square(x).mean(-1, keepdims=True) + epsilon
    scale = factor / np.sqrt(square)
    along, size = (one.mean(-1, keepdims=True) / square for one in (grad * x, np.abs(grad * x)))
    return [((grad - x * along) * scale, (np.abs(grad) + np.abs(x) * size) * scale)]


#: By function of :mod:`models.operations.compiled`.
CHECKS = {
    "keep": LoopCheck(
        "keep",
        (0, 1),
        lambda draw, x, kept, scale: (_normal(draw, x), draw.random(tuple(kept)) < 0.8, scale),
        lambda x, kept, scale: _itself(x.astype(np.float64) * kept * scale),
    ),
    "relu": LoopCheck("rectify", (0,), _draw_normal, lambda x: _exactly(np.maximum(x, 0.0))),
    "relu_backward": LoopCheck(
        "rectify",
        (0, 1),
        lambda draw, grad, rectified: (_normal(draw, grad), np.maximum(_normal(draw, rectified), np.float32(0.0))),
        lambda grad, rectified: _exactly(np.where(rectified > 0.0, grad, 0.0)),
    ),
    "square_sums": LoopCheck("square_sums", (0,), _draw_normal, _square_sums),
    "adamw_": LoopCheck("adamw", (6, 7, 8, 9), _draw_adamw, _adamw),
    "add_row_": LoopCheck("add_row", (0,), _draw_normal, lambda x, row: _itself(x.astype(np.float64) + row)),
    "gather_rows": LoopCheck("gather_rows", (1,), _draw_gather_rows, _gather_rows),
    "scale_columns": LoopCheck(
        "scale_columns",
        (1,),
        _draw_normal,
        lambda table, factors: _itself(table.astype(np.float64) * factors[:, None, :, None]),
    ),
    "scale_columns_backward": LoopCheck("scale_columns_backward", (0, 1), _draw_normal, _scale_columns_backward),
    "layer_norm": LoopCheck(
        "norm_rows",
        (0,),
        lambda draw, x, gain, bias, epsilon: (_rows(draw, x, epsilon), *_draw_normal(draw, gain, bias), epsilon),
        _layer_norm,
    ),
    "layer_norm_backward": LoopCheck(
        "norm_rows_backward",
        (0, 1),
        lambda draw, grad, x, gain, epsilon: (
            _normal(draw, grad),
            _rows(draw, x, epsilon),
            _normal(draw, gain),
            epsilon,
        ),
        _layer_norm_backward,
    ),
    "add_on_grid": LoopCheck("add_on_grid", (0, 1), _draw_add_on_grid, _add_on_grid),
    "nearest_axes": LoopCheck(
        "nearest_axes", (0,), _draw_axes, lambda x: _exactly(np.concatenate([x, -x], -1).argmax(-1))
    ),
    "attend_chunks": LoopCheck("attend_chunks", (0, 1, 2, 4, 5, 10), _draw_attention, _attention),
    "attend_chunks_backward": LoopCheck(
        "attend_chunks_backward", (0, 1, 2, 4, 5, 10, 12, 13), _draw_attention_backward, _attention_backward
    ),
    "softmax": LoopCheck("softmax_rows", (0, 2), _draw_softmax, _softmax),
    "softmax_backward": LoopCheck("softmax_rows_backward", (0, 1), _draw_softmax_backward, _softmax_backward),
    "cross_entropy": LoopCheck("cross_entropy_rows", (0, 1), _draw_cross_entropy, _cross_entropy),
    "cross_entropy_backward": LoopCheck(
        "cross_entropy_rows_backward", (1, 0, 2, 3), _draw_cross_entropy_backward, _cross_entropy_backward
    ),
    "keys": LoopCheck(
        "key_rows", (0,), lambda draw, x, epsilon, factor: (_rows(draw, x, epsilon), epsilon, factor), _keys
    ),
    "keys_backward": LoopCheck(
        "key_rows_backward",
        (0, 1),
        lambda draw, grad, x, epsilon, factor: (_normal(draw, grad), _rows(draw, x, epsilon), epsilon, factor),
        _keys_backward,
    ),
}
