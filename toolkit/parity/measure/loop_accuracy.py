"""Accuracy of each compiled loop of the port by itself: on random input of a run's own shapes, against float64.

A free run in float32 may be three times as far off as the reference's, which hides a loop that loses a few digits. By
itself a loop has no such room. Its input is drawn, so that its condition is known: for each element a *unit* is one
float32 rounding of what is added up there, and errors are measured in these.

All is NumPy: the judging side draws the same input again from the shapes, and is handed only the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

#: Float32's unit of rounding.
ROUNDING = 2.0**-24
#: Least error of a number, in roundings of itself: below 2^-126 float32 has fewer digits.
LEAST = 2.0**-125
#: Columns whose sum, taken in one go, adds one unit of error.
ONE_SUM = 4096
#: Numbers that a loop is tried on at most, taken from the first examples.
MOST_NUMBERS = 2**19
#: Rows of CTRL's vocabulary test sums, and an exp, of which few classes tell nothing.
WIDE = {"cross_entropy": [[2, 246_534], [2]], "cross_entropy_backward": [[2], [2, 246_534], [2], [2, 2]]}

#: An output as it should be, and the units of its elements; 0 where it must be that number.
Truth = tuple[np.ndarray, np.ndarray]


@dataclass
class LoopCall:
    """A call of a function of :mod:`models.operations.compiled`.

    Attributes:
        given: its arguments: an array's shape, a list for arrays and their values, else the value.
        where: the source line of its loop.
    """

    function: str
    given: list[Any] = field(default_factory=list)
    where: str = ""


@dataclass(frozen=True)
class LoopCheck:
    """Test of a function of :mod:`models.operations.compiled`.

    Attributes:
        loop: of :mod:`models.operations.loops`, that it runs.
        examples: its arguments with an example, or a row, for each index of their first axis.
        draw: gives the arguments, from a generator and what it was called with.
        exact: gives what each output should be.
    """

    loop: str
    examples: tuple[int, ...]
    draw: Callable[..., tuple]
    exact: Callable[..., list[Truth]]


@dataclass
class LoopError:
    """Errors of a loop, in units of rounding; None if not a number, or if it has to be exact and is not.

    Attributes:
        function: of :mod:`models.operations.compiled`; ``loop``: of :mod:`models.operations.loops`, that it runs.
        given, where: as of :class:`LoopCall`.
        rms, largest: of the worst output.
    """

    function: str
    loop: str
    given: list[Any]
    rms: float | None
    largest: float | None
    where: str = ""


def calls(recorded: Sequence[LoopCall]) -> Iterator[LoopCall]:
    """Calls to try: each once, on :data:`MOST_NUMBERS` at most; and rows as wide as any."""
    for call in recorded:
        yield _limited(call)
    for function, given in WIDE.items():
        if first := [call for call in recorded if call.function == function][:1]:
            yield replace(first[0], given=given)


def _limited(call: LoopCall) -> LoopCall:
    given, examples = list(call.given), CHECKS[call.function].examples
    numbers = max(math.prod(shape) for shape in given if is_shape(shape))
    many = given[examples[0]][0]
    few = max(1, many * MOST_NUMBERS // max(numbers, 1))
    if few >= many:
        return call
    for index in examples:
        given[index] = _cut(given[index], many, few)
    return replace(call, given=given)


def is_shape(given: Any) -> bool:
    """Whether an argument of a call is the shape of an array."""
    return isinstance(given, list) and bool(given) and all(isinstance(size, int) for size in given)


def _cut(shapes: Any, many: int, few: int) -> Any:
    """A shape, or a list with shapes in it, with few of many examples."""
    if is_shape(shapes):
        return [few, *shapes[1:]] if shapes[0] == many else shapes
    return [_cut(one, many, few) for one in shapes] if isinstance(shapes, list) else shapes


def drawn(call: LoopCall) -> tuple:
    """Arguments of a call, with NumPy arrays; the same ones each time."""
    return CHECKS[call.function].draw(np.random.default_rng(0), *call.given)


def error(call: LoopCall, outputs: Sequence[np.ndarray], truths: Sequence[Truth] | None = None) -> LoopError:
    """How far off the outputs of a call are.

    Args:
        outputs: of the loop, given :func:`drawn`.
        truths: what they should be, if known already.
    """
    check = CHECKS[call.function]
    truths = check.exact(*drawn(call)) if truths is None else truths
    found = [_in_units(output, *truth) for output, truth in zip(outputs, truths, strict=True)]
    rms, largest = (max(column) for column in zip(*found, strict=True))
    if not np.isfinite(rms):
        return LoopError(call.function, check.loop, call.given, None, None, call.where)
    return LoopError(call.function, check.loop, call.given, rms, largest, call.where)


def _in_units(output: np.ndarray, truth: np.ndarray, unit: np.ndarray) -> tuple[float, float]:
    """RMS and largest error where there may be one; infinite without a number, or where none may be."""
    if output.shape != truth.shape:
        return np.inf, np.inf
    off = np.abs(output.astype(np.float64) - truth)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(off == 0, 0.0, off / (ROUNDING * unit))
    largest = float(units.max(initial=0.0))
    if not np.isfinite(largest):
        return np.inf, np.inf
    return float(np.sqrt(np.square(units).sum() / max(np.count_nonzero(unit), 1))), largest


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


#: By function of :mod:`models.operations.compiled`: all but the random masks, which verdict 7 judges.
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
    "decoder_step": LoopCheck("decoder_step", (1, 5), _draw_decoder_step, _decoder_step),
    "reversible_step": LoopCheck("reversible_step", (0, 3), _draw_reversible_step, _reversible_step),
}
