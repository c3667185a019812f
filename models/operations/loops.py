"""Loops over numbers, compiled by Numba where it is installed: one pass over memory on all cores of a run, where
Paddle's CPU operations take five passes on one core.

All arrays are float32 unless a comment says otherwise, contiguous, and do not overlap. The calling convention and the
threads are defined in :mod:`models.operations.loop_code`, which imports this module, and Numba, only to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from models.operations.kernels import BLOCK_COLUMNS, BLOCK_ROWS, PRODUCT, THREADS

#: ln 2 in two parts, of which the first has so few digits that its product with a power's exponent is exact.
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(math.log(2.0) - 0.693359375)
LOG2_E = np.float32(math.log2(math.e))
#: Series of exp; the eighth term is below 2^-27 of it for arguments reduced to half of ln 2.
SERIES = [np.float32(1.0 / math.factorial(n)) for n in range(8)]
S2, S3, S4, S5, S6, S7 = SERIES[2:]
#: exp of anything smaller is 0 in float32.
LEAST = np.float32(-110.0)
LOWEST, HIGHEST = np.int32(-(2**31)), np.int32(2**31 - 1)
#: Weyl sequence and finalizer of SplitMix64 (Steele, Lea, Flood 2014, figures 16 and 17).
GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

_thread = types.ExternalFunction(THREADS["omp_get_thread_num"], types.int32())
_threads = types.ExternalFunction(THREADS["omp_get_num_threads"], types.int32())
_wait = types.ExternalFunction(THREADS["GOMP_barrier"], types.void())
_MATRIX = types.int64, types.int32
_sgemm = types.ExternalFunction(
    PRODUCT, types.void(*[types.int32] * 6, types.float32, *_MATRIX * 2, types.float32, *_MATRIX)
)
_allocate = types.ExternalFunction("malloc", types.int64(types.int64))
_free = types.ExternalFunction("free", types.void(types.int64))


def compiled(function: Callable) -> tuple[str, str]:
    """Compile a loop, of this or another module; return its LLVM assembly and the name of its function there."""
    options = {"nopython": True, "error_model": "numpy", "fastmath": getattr(function, _FASTMATH)}
    made = cfunc(_SIGNATURE, **options)(function)
    return made.inspect_llvm(), made.native_name


_SIGNATURE = types.void(types.CPointer(types.int64))
_FASTMATH = "fastmath"


def _loop(*fastmath: str) -> Callable[[Callable], Callable]:
    """Mark a loop, with its sums' fast-math flags: ``reassoc`` adds in several lanes, ``contract`` fuses products."""

    def marked(function: Callable) -> Callable:
        setattr(function, _FASTMATH, set(fastmath))
        return function

    return marked


def _pointer(kind: types.Type) -> Callable:
    @intrinsic
    def pointer(context, address):
        def code(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(kind)))

        return types.CPointer(kind)(types.int64), code

    return pointer


_to_float32, _to_float64 = _pointer(types.float32), _pointer(types.float64)
_to_uint8, _to_uint32 = _pointer(types.uint8), _pointer(types.uint32)
_to_int32, _to_int64 = _pointer(types.int32), _pointer(types.int64)


@intrinsic
def _from_bits(context, bits):
    """The float32 of these 32 bits."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), code


@intrinsic
def _bits(context, number):
    """The 32 bits of a float32."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(types.float32), code


@intrinsic
def _scalar(context, bits):
    """The float64 of these 64 bits."""

    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), code


@njit(inline="always")
def _share(length):
    """Return begin and end of this thread's share."""
    thread, threads = _thread(), _threads()
    return length * thread // threads, length * (thread + 1) // threads


@njit(inline="always")
def _floats(address, first, count):
    return carray(_to_float32(address + 4 * first), count)


@njit(inline="always")
def _doubles(address, first, count):
    return carray(_to_float64(address + 8 * first), count)


@njit(inline="always")
def _bytes(address, first, count):
    return carray(_to_uint8(address + first), count)


@njit(inline="always")
def _int32s(address, count):
    return carray(_to_int32(address), count)


@njit(inline="always")
def _room(size):
    """Memory of ``size`` bytes to free later, and where a cache line begins in it: MKL may add up in an order that
    depends on where in a line its matrices begin."""
    memory = _allocate(size + 64)
    return memory, (memory + 63) // 64 * 64


@njit(inline="always")
def _integers(address, first, count):
    return carray(_to_int64(address + 8 * first), count)


# -- dropout


@njit(inline="always")
def _mixed(z):
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@_loop()
def draw_mask(given):
    """length (cells), out (uint8), seed, threshold: which 16-bit random numbers reach the threshold. Four of them
    are one 64-bit number of SplitMix64; cell i depends only on the seed and i."""
    args = carray(given, 4)
    cells, threshold = args[0], np.uint64(args[3])
    seed = np.uint64(args[2])
    low = np.uint64(0xFFFF)
    words = cells // 4
    first, last = _share(words)
    out = carray(_to_uint32(args[1] + 4 * first), last - first)
    begin = seed + np.uint64(first + 1) * GAMMA
    for i in range(last - first):
        z = _mixed(begin + np.uint64(i) * GAMMA)
        word = np.uint64((z & low) >= threshold)
        word |= np.uint64(((z >> np.uint64(16)) & low) >= threshold) << np.uint64(8)
        word |= np.uint64(((z >> np.uint64(32)) & low) >= threshold) << np.uint64(16)
        word |= np.uint64((z >> np.uint64(48)) >= threshold) << np.uint64(24)
        out[i] = np.uint32(word)
    if last == words:
        rest = _bytes(args[1], 4 * words, cells - 4 * words)
        z = _mixed(seed + np.uint64(words + 1) * GAMMA)
        for i in range(cells - 4 * words):
            rest[i] = np.uint8(((z >> np.uint64(16 * i)) & low) >= threshold)


@_loop()
def keep(given):
    """length (numbers), x, kept (uint8), out, scale: x times scale where kept, else 0."""
    args = carray(given, 5)
    first, last = _share(args[0])
    count = last - first
    x, kept, out = _floats(args[1], first, count), _bytes(args[2], first, count), _floats(args[3], first, count)
    scale = np.float32(_scalar(args[4]))
    for i in range(count):
        out[i] = x[i] * (scale if kept[i] else np.float32(0.0))


@_loop()
def rectify(given):
    """length (numbers), x, decides, out: x where ``decides`` is above 0, or no number, else 0."""
    args = carray(given, 4)
    first, last = _share(args[0])
    count = last - first
    x, decides, out = _floats(args[1], first, count), _floats(args[2], first, count), _floats(args[3], first, count)
    for i in range(count):
        out[i] = np.float32(0.0) if decides[i] <= np.float32(0.0) else x[i]


# -- gradients of parameters


@njit(inline="always")
def _within(first, last, begin, count):
    """Begin and end of the part between ``first`` and ``last`` of ``count`` things that follow ``begin`` others."""
    start = max(first - begin, 0)
    return start, max(min(last - begin, count), start)


@_loop("reassoc", "contract")
def square_sums(given):
    """length (blocks of BLOCK_COLUMNS numbers of all tensors; a tensor's last may be shorter), out (float64), tensors,
    then of each: x, numbers: each block's sum of squares."""
    args = carray(given, 3)
    of = carray(given, 3 + 2 * args[2])
    first, last = _share(args[0])
    begin = 0
    for tensor in range(args[2]):
        address, numbers = of[3 + 2 * tensor], of[4 + 2 * tensor]
        blocks = (numbers + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
        start, end = _within(first, last, begin, blocks)
        for block in range(start, end):
            count = min(BLOCK_COLUMNS, numbers - block * BLOCK_COLUMNS)
            x, total = _floats(address, block * BLOCK_COLUMNS, count), np.float32(0.0)
            for i in range(count):
                total += x[i] * x[i]
            _doubles(args[1], begin + block, 1)[0] = total
        begin += blocks


@_loop("contract")
def adamw(given):
    """length (numbers of all parameters), beta1, beta2, epsilon, factor of gradients, parameters, then of each: weight,
    gradient, first and second moment, the powers of beta1 and beta2 so far (a number each), numbers, rate, decay: a
    step of AdamW, in place."""
    args = carray(given, 6)
    of = carray(given, 6 + 9 * args[5])
    beta1, beta2 = np.float32(_scalar(args[1])), np.float32(_scalar(args[2]))
    rest1, rest2, factor = np.float32(1.0) - beta1, np.float32(1.0) - beta2, np.float32(_scalar(args[4]))
    first, last = _share(args[0])
    begin = 0
    for parameter in range(args[5]):
        own = of[6 + 9 * parameter : 15 + 9 * parameter]
        start, end = _within(first, last, begin, own[6])
        count = end - start
        weight, grad = _floats(own[0], start, count), _floats(own[1], start, count)
        mean, square = _floats(own[2], start, count), _floats(own[3], start, count)
        root = math.sqrt(1.0 - np.float64(_floats(own[5], 0, 1)[0]))
        rate, epsilon = _scalar(own[7]), np.float32(_scalar(args[3]) * root)
        step = np.float32(rate * root / (1.0 - np.float64(_floats(own[4], 0, 1)[0])))
        decay = np.float32(rate * _scalar(own[8]))
        for i in range(count):
            clipped = factor * grad[i]
            new_mean = beta1 * mean[i] + rest1 * clipped
            new_square = beta2 * square[i] + rest2 * (clipped * clipped)
            mean[i], square[i] = new_mean, new_square
            weight[i] -= decay * weight[i] + step * (new_mean / (math.sqrt(new_square) + epsilon))
        begin += own[6]
    _wait()
    if _thread() == 0:
        for parameter in range(args[5]):
            own = of[6 + 9 * parameter : 15 + 9 * parameter]
            _floats(own[4], 0, 1)[0] *= beta1
            _floats(own[5], 0, 1)[0] *= beta2


# -- rows


@_loop()
def add_row(given):
    """length (rows), x, row, width: the row added to all rows of x, in place."""
    args = carray(given, 4)
    width = args[3]
    added = _floats(args[2], 0, width)
    first, last = _share(args[0])
    for row in range(first, last):
        x = _floats(args[1], row * width, width)
        for i in range(width):
            x[i] += added[i]


@_loop()
def scale_columns(given):
    """length (batch * positions), table (positions, width), factors (batch, columns), out, positions, columns, width:
    a copy of the table per example, each row times its column's factor."""
    args = carray(given, 7)
    positions, columns, width = args[4], args[5], args[6]
    first, last = _share(args[0])
    for row in range(first, last):
        position = row % positions
        table, out = _floats(args[1], position * width, width), _floats(args[3], row * width, width)
        factor = _floats(args[2], row // positions * columns + position % columns, 1)[0]
        for i in range(width):
            out[i] = table[i] * factor


@_loop()
def scale_columns_backward(given):
    """length (positions), grad (batch, positions, width), factors (batch, columns), out (positions, width), batch,
    columns, width."""
    args = carray(given, 7)
    positions, batch, columns, width = args[0], args[4], args[5], args[6]
    first, last = _share(positions)
    for position in range(first, last):
        out = _floats(args[3], position * width, width)
        for i in range(width):
            out[i] = np.float32(0.0)
        for example in range(batch):
            grad = _floats(args[1], (example * positions + position) * width, width)
            factor = _floats(args[2], example * columns + position % columns, 1)[0]
            for i in range(width):
                out[i] += grad[i] * factor


@_loop()
def gather_rows(given):
    """length (rows of out), x, index (int64, (rounds, rows)), out, width, rounds: the sum of a row of x per round."""
    args = carray(given, 6)
    width, rounds = args[4], args[5]
    first, last = _share(args[0])
    for row in range(first, last):
        out = _floats(args[3], row * width, width)
        x = _floats(args[1], _integers(args[2], row, 1)[0] * width, width)
        for i in range(width):
            out[i] = x[i]
        for step in range(1, rounds):
            x = _floats(args[1], _integers(args[2], step * args[0] + row, 1)[0] * width, width)
            for i in range(width):
                out[i] += x[i]


# -- layer norm


@njit(inline="always")
def _mean_and_scale(row, width, epsilon):
    total = np.float32(0.0)
    for i in range(width):
        total += row[i]
    mean = total / np.float32(width)
    squares = np.float32(0.0)
    for i in range(width):
        squares += (row[i] - mean) * (row[i] - mean)
    return mean, np.float32(1.0) / math.sqrt(squares / np.float32(width) + epsilon)


@njit(inline="always")
def _norm(x, gain, bias, out, rows, width, epsilon):
    """Layer norm of rows, by address."""
    first, last = _share(rows)
    for row in range(first, last):
        own, normed = _floats(x, row * width, width), _floats(out, row * width, width)
        gains, biases = _floats(gain, 0, width), _floats(bias, 0, width)
        mean, scale = _mean_and_scale(own, width, epsilon)
        for i in range(width):
            normed[i] = (own[i] - mean) * scale * gains[i] + biases[i]


@_loop("reassoc", "contract")
def norm_rows(given):
    """length (rows), x, gain, bias, out, width, epsilon."""
    args = carray(given, 7)
    _norm(args[1], args[2], args[3], args[4], args[0], args[5], np.float32(_scalar(args[6])))


@_loop("reassoc", "contract")
def norm_rows_backward(given):
    """length (blocks of BLOCK_ROWS rows), rows, grad, x, gain, out, sums, width, epsilon: the gradient of ``x``; and
    ``sums`` (blocks, 2, width): per block, the sums of grad * normed rows and of grad."""
    args = carray(given, 9)
    rows, width, epsilon = args[1], args[7], np.float32(_scalar(args[8]))
    gain = _floats(args[4], 0, width)
    first, last = _share(args[0])
    for block in range(first, last):
        of_gain = _floats(args[6], 2 * block * width, width)
        of_bias = _floats(args[6], (2 * block + 1) * width, width)
        for i in range(width):
            of_gain[i] = np.float32(0.0)
            of_bias[i] = np.float32(0.0)
        for row in range(block * BLOCK_ROWS, min(rows, (block + 1) * BLOCK_ROWS)):
            grad, x = _floats(args[2], row * width, width), _floats(args[3], row * width, width)
            out = _floats(args[5], row * width, width)
            mean, scale = _mean_and_scale(x, width, epsilon)
            total, along = np.float32(0.0), np.float32(0.0)
            for i in range(width):
                inner = grad[i] * gain[i]
                total += inner
                along += inner * ((x[i] - mean) * scale)
            total /= np.float32(width)
            along /= np.float32(width)
            for i in range(width):
                normed = (x[i] - mean) * scale
                out[i] = (grad[i] * gain[i] - total - normed * along) * scale
                of_gain[i] += grad[i] * normed
                of_bias[i] += grad[i]


# -- the residual streams


@_loop()
def add_on_grid(given):
    """length (numbers), exact (float64), update, out (float64), value, rounder, sign: the sum of ``exact`` and the
    rounded update, and the same in float32."""
    args = carray(given, 7)
    first, last = _share(args[0])
    count = last - first
    exact, update = _doubles(args[1], first, count), _floats(args[2], first, count)
    out, value = _doubles(args[3], first, count), _floats(args[4], first, count)
    rounder, sign = _scalar(args[5]), _scalar(args[6])
    for i in range(count):
        total = exact[i] + sign * ((np.float64(update[i]) + rounder) - rounder)
        out[i] = total
        value[i] = np.float32(total)


# -- softmax


@njit(inline="always")
def _exp(x):
    """Return exp of a number of at most 0, right to its last digit or the one before; below 2^-126, float32 has fewer
    digits."""
    x = LEAST if x < LEAST else x  # not max: NaN stays NaN
    power = np.floor(x * LOG2_E + np.float32(0.5))
    rest = x - power * LN2_HIGH - power * LN2_LOW
    tail = S2 + rest * (S3 + rest * (S4 + rest * (S5 + rest * (S6 + rest * S7))))
    series = np.float32(1.0) + (rest + rest * rest * tail)
    exponent = np.int32(power)
    half = exponent >> np.int32(1)  # 2^-150 is no float32, the product of two halves may be
    low = np.int32((half + np.int32(127)) << np.int32(23))
    high = np.int32((exponent - half + np.int32(127)) << np.int32(23))
    return series * _from_bits(low) * _from_bits(high)


@njit(inline="always")
def _turned(bits):
    """Map a float32's bits to an integer with the same order, or back. The maximum of a row is vectorised only for
    integers, as NaN has no order."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(inline="always")
def _largest(row, width):
    top = LOWEST
    for i in range(width):
        top = max(top, _turned(_bits(row[i])))
    return _from_bits(_turned(top))


@njit(inline="always")
def _exponentiate(row, width):
    """Softmax of a row, in place; return its largest score and the sum of exp(score - largest)."""
    largest, total = _largest(row, width), np.float32(0.0)
    for i in range(width):
        weight = _exp(row[i] - largest)
        row[i] = weight
        total += weight
    share = np.float32(1.0) / total
    for i in range(width):
        row[i] *= share
    return largest, total


@_loop("reassoc", "contract")
def softmax_rows(given):
    """length (rows), scores, out, width, divisor, bias (or 0), queries, group: softmax of scores / divisor + bias. The
    bias has a row per query, and others for every ``group`` rows of scores."""
    args = carray(given, 8)
    width, divisor, queries, group = args[3], np.float32(_scalar(args[4])), args[6], args[7]
    first, last = _share(args[0])
    for row in range(first, last):
        scores, out = _floats(args[1], row * width, width), _floats(args[2], row * width, width)
        for i in range(width):
            out[i] = scores[i] / divisor
        if args[5]:
            added = _floats(args[5], (row // group * queries + row % queries) * width, width)
            for i in range(width):
                out[i] += added[i]
        _exponentiate(out, width)


@njit(inline="always")
def _softmax_gradient(grad, weights, out, width, beside):
    """The gradient of a row's scores; ``beside``: that of its normaliser."""
    mean, top = np.float32(0.0), np.int32(0)
    for i in range(width):
        mean += grad[i] * weights[i]
        top = max(top, _bits(weights[i]))
    left = np.float32(0.0)
    if _from_bits(top) < np.float32(1.0):  # where it is 1, float64 loses the rest, too
        for i in range(width):
            left += (grad[i] - mean) * weights[i]
    for i in range(width):
        out[i] = weights[i] * (((grad[i] - mean) - left) + beside)


@_loop("reassoc", "contract")
def softmax_rows_backward(given):
    """length (rows), grad, probabilities, out, width, divisor."""
    args = carray(given, 6)
    width, divisor = args[4], np.float32(_scalar(args[5]))
    first, last = _share(args[0])
    for row in range(first, last):
        grad, weights = _floats(args[1], row * width, width), _floats(args[2], row * width, width)
        out = _floats(args[3], row * width, width)
        _softmax_gradient(grad, weights, out, width, np.float32(0.0))
        for i in range(width):
            out[i] /= divisor


# -- cross entropy


@_loop("reassoc", "contract")
def cross_entropy_rows(given):
    """length (rows), logits, labels (int64), losses, normalisers, width: -log softmax(row)[label]; and for each row the
    largest score and the sum of exp(score - largest)."""
    args = carray(given, 6)
    width = args[5]
    first, last = _share(args[0])
    for row in range(first, last):
        logits = _floats(args[1], row * width, width)
        largest = _largest(logits, width)
        total = np.float64(0.0)
        for begin in range(0, width, BLOCK_COLUMNS):
            part = np.float32(0.0)
            for i in range(begin, min(width, begin + BLOCK_COLUMNS)):
                part += _exp(logits[i] - largest)
            total += np.float64(part)
        label = _integers(args[2], row, 1)[0]
        # In this order a small loss keeps its digits beside large scores.
        _floats(args[3], row, 1)[0] = np.float32(math.log(total) + (np.float64(largest) - np.float64(logits[label])))
        normaliser = _floats(args[4], 2 * row, 2)
        normaliser[0] = largest
        normaliser[1] = np.float32(total)


@_loop("reassoc", "contract")
def cross_entropy_rows_backward(given):
    """length (rows), grad (one per row), logits, labels (int64), normalisers, out, width. Rows with grad 0
    are not computed: their gradient is 0."""
    args = carray(given, 7)
    width = args[6]
    first, last = _share(args[0])
    for row in range(first, last):
        logits, out = _floats(args[2], row * width, width), _floats(args[5], row * width, width)
        grad, normaliser = _floats(args[1], row, 1)[0], _floats(args[4], 2 * row, 2)
        if grad == np.float32(0.0):
            for i in range(width):
                out[i] = np.float32(0.0)
            continue
        largest, share = normaliser[0], grad / normaliser[1]
        for i in range(width):
            out[i] = _exp(logits[i] - largest) * share
        out[_integers(args[3], row, 1)[0]] -= grad


# -- LSH's keys


@_loop("reassoc", "contract")
def key_rows(given):
    """length (rows), x, out, width, epsilon, factor: rows of mean square 1, times the factor."""
    args = carray(given, 6)
    width, epsilon, factor = args[3], np.float32(_scalar(args[4])), np.float32(_scalar(args[5]))
    first, last = _share(args[0])
    for row in range(first, last):
        x, out = _floats(args[1], row * width, width), _floats(args[2], row * width, width)
        squares = np.float32(0.0)
        for i in range(width):
            squares += x[i] * x[i]
        scale = factor / math.sqrt(squares / np.float32(width) + epsilon)
        for i in range(width):
            out[i] = x[i] * scale


@_loop("reassoc", "contract")
def key_rows_backward(given):
    """length (rows), grad, x, out, width, epsilon, factor."""
    args = carray(given, 7)
    width, epsilon, factor = args[4], np.float32(_scalar(args[5])), np.float32(_scalar(args[6]))
    first, last = _share(args[0])
    for row in range(first, last):
        grad, x = _floats(args[1], row * width, width), _floats(args[2], row * width, width)
        out = _floats(args[3], row * width, width)
        squares, along = np.float32(0.0), np.float32(0.0)
        for i in range(width):
            squares += x[i] * x[i]
            along += grad[i] * x[i]
        mean_square = squares / np.float32(width) + epsilon
        scale = factor / math.sqrt(mean_square)
        along /= np.float32(width) * mean_square
        for i in range(width):
            out[i] = (grad[i] - x[i] * along) * scale


# -- LSH's buckets


@njit(inline="always")
def _nearest_axis(x, width):
    """Which of these numbers, and of these with the other sign, is largest, by address."""
    row, most, least = _floats(x, 0, width), 0, 0
    for i in range(1, width):
        most = i if row[i] > row[most] else most
        least = i if row[i] < row[least] else least
    return most if row[most] >= -row[least] else width + least


@_loop()
def nearest_axes(given):
    """length (rows), x, out (int64), width: :func:`_nearest_axis` of each row."""
    args = carray(given, 4)
    first, last = _share(args[0])
    for row in range(first, last):
        _integers(args[2], row, 1)[0] = _nearest_axis(args[1] + 4 * row * args[3], args[3])


# -- attention between chunks


@njit(inline="always")
def _multiply(a, b, out, sizes, turned, strides, added):
    """The product of two matrices by address, to ``out``, or ``added`` to it.

    ``sizes``: rows and columns of the product, and the length of its sums. ``turned``: which factor is transposed in
    memory. ``strides``: of the rows of each of the three in memory.
    """
    _sgemm(
        np.int32(101),  # row by row
        np.int32(112 if turned[0] else 111),
        np.int32(112 if turned[1] else 111),
        np.int32(sizes[0]),
        np.int32(sizes[1]),
        np.int32(sizes[2]),
        np.float32(1.0),
        a,
        np.int32(strides[0]),
        b,
        np.int32(strides[1]),
        np.float32(added),
        out,
        np.int32(strides[2]),
    )


@njit(inline="always")
def _put_where_masked(args, query, seen, row, width, of_hidden, of_own):
    """In a row of a chunk's scores, put a value where the key is hidden from the query, and then one where it is the
    query's own and that is masked, too. ``seen``: from :func:`_weigh`."""
    places, hidden_from = _int32s(seen, width), _int32s(seen + 4 * width, width)
    place = np.int32(_integers(args[4], query, 1)[0]) if args[4] else np.int32(0)
    if args[4] or args[5]:
        for i in range(width):
            row[i] = of_hidden if hidden_from[i] > place else row[i]
    if args[13]:
        for i in range(width):
            row[i] = of_own if places[i] == place else row[i]


@njit(inline="always")
def _weigh(args, ring, chunk, weights, seen):
    """Softmax of a chunk's masked scores, (size, width), by address; and to ``seen`` the place of each key, then the
    last place of a query from which it is hidden, int32. ``args`` are those of :func:`attend_chunks`."""
    chunks, size, parts, depth, causal = args[8], args[9], args[10], args[11], args[12]
    width, first = size * parts, ring * chunks * size
    own = first + chunk * size
    places, hidden_from = _int32s(seen, width), _int32s(seen + 4 * width, width)
    for part in range(parts):
        begin = first + _integers(args[7], chunk * parts + part, 1)[0] * size
        query, key = args[1] + 4 * own * depth, args[2] + 4 * begin * depth
        scores = weights + 4 * part * size
        _multiply(query, key, scores, (size, size, depth), (False, True), (depth, depth, width), False)
        for i in range(size):
            place = np.int32(_integers(args[4], begin + i, 1)[0]) if args[4] else np.int32(0)
            places[part * size + i] = place
            hidden_from[part * size + i] = place if causal else LOWEST
            if args[5] and not _bytes(args[5], begin + i, 1)[0]:
                hidden_from[part * size + i] = HIGHEST
    masked, self_masked = np.float32(_scalar(args[14])), np.float32(_scalar(args[15]))
    for row in range(size):
        scores = _floats(weights, row * width, width)
        _put_where_masked(args, own + row, seen, scores, width, masked, self_masked)
        largest, total = _exponentiate(scores, width)
        if args[6]:
            _floats(args[6], own + row, 1)[0] = largest + math.log(total)


@njit(inline="always")
def _drop(x, kept, scale, count):
    """Dropout in place, by address."""
    numbers, drawn = _floats(x, 0, count), _bytes(kept, 0, count)
    for i in range(count):
        numbers[i] *= scale if drawn[i] else np.float32(0.0)


@_loop("reassoc", "contract")
def attend_chunks(given):
    """length (rings), query, key, value (rings, chunks, size, depth), places (int64, (rings, chunks, size); or 0), kept
    (uint8, alike; or 0), normaliser (or 0), order (int64, (chunks, parts)), chunks, size, parts, depth, causal, itself,
    masked, self_masked, dropout's mask (uint8, (rings, chunks, size, width); or 0), its scale, out."""
    args = carray(given, 19)
    chunks, size, parts, depth = args[8], args[9], args[10], args[11]
    width, scale = size * parts, np.float32(_scalar(args[17]))
    room, weights = _room(4 * size * width + 8 * width)
    seen = weights + 4 * size * width
    first, last = _share(args[0])
    for ring in range(first, last):
        for chunk in range(chunks):
            own = (ring * chunks + chunk) * size
            _weigh(args, ring, chunk, weights, seen)
            if args[16]:
                _drop(weights, args[16] + own * width, scale, size * width)
            for part in range(parts):
                begin = (ring * chunks + _integers(args[7], chunk * parts + part, 1)[0]) * size
                value, out = args[3] + 4 * begin * depth, args[18] + 4 * own * depth
                weight = weights + 4 * part * size
                _multiply(weight, value, out, (size, depth, size), (False, False), (width, depth, depth), part > 0)
    _free(room)


@_loop("reassoc", "contract")
def attend_chunks_backward(given):
    """As :func:`attend_chunks` up to dropout's scale, without normaliser; then the gradients of its output and of the
    normaliser (or 0), and out: those of query, key and value."""
    args = carray(given, 23)
    chunks, size, parts, depth = args[8], args[9], args[10], args[11]
    width, scale = size * parts, np.float32(_scalar(args[17]))
    room, weights = _room(8 * size * width + 8 * width)
    grads = weights + 4 * size * width  # first the dropped weights
    seen = grads + 4 * size * width
    first, last = _share(args[0])
    for ring in range(first, last):
        for sums in (args[21], args[22]):
            begun = _floats(sums, ring * chunks * size * depth, chunks * size * depth)
            for i in range(chunks * size * depth):
                begun[i] = np.float32(0.0)
        for chunk in range(chunks):
            own = (ring * chunks + chunk) * size
            query, grad, grad_query = args[1] + 4 * own * depth, args[18] + 4 * own * depth, args[20] + 4 * own * depth
            _weigh(args, ring, chunk, weights, seen)
            moved, softmax = _floats(grads, 0, size * width), _floats(weights, 0, size * width)
            for i in range(size * width):
                moved[i] = softmax[i]
            if args[16]:
                _drop(grads, args[16] + own * width, scale, size * width)
            for part in range(parts):
                begin = (ring * chunks + _integers(args[7], chunk * parts + part, 1)[0]) * size
                value, grad_value = args[3] + 4 * begin * depth, args[22] + 4 * begin * depth
                of = grads + 4 * part * size
                _multiply(of, grad, grad_value, (size, depth, size), (True, False), (width, depth, depth), True)
                _multiply(grad, value, of, (size, size, depth), (False, True), (depth, depth, width), False)
            if args[16]:
                _drop(grads, args[16] + own * width, scale, size * width)
            for row in range(size):
                of_row = _floats(grads, row * width, width)
                beside = _floats(args[19], own + row, 1)[0] if args[19] else np.float32(0.0)
                _softmax_gradient(of_row, _floats(weights, row * width, width), of_row, width, beside)
                _put_where_masked(args, own + row, seen, of_row, width, np.float32(0.0), np.float32(0.0))
            for part in range(parts):
                begin = (ring * chunks + _integers(args[7], chunk * parts + part, 1)[0]) * size
                key, grad_key = args[2] + 4 * begin * depth, args[21] + 4 * begin * depth
                of = grads + 4 * part * size
                _multiply(of, key, grad_query, (size, depth, size), (False, False), (width, depth, depth), part > 0)
                _multiply(of, query, grad_key, (size, depth, size), (True, False), (width, depth, depth), True)
    _free(room)
