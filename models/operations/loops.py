"""Loops over numbers, compiled by Numba, which pass over memory once, on all cores of a run.

Paddle's CPU operations take five passes on one core for the same result.

:data:`models.operations.loop_arguments.DECLARATIONS` declares the arguments of each loop. A parameter of a loop is
the field of its name, ``has_NAME`` for an optional array NAME, or ``call``, the named tuple of all of these. Arrays do
not overlap. :mod:`models.operations.loop_code` defines the threads. It imports this module, and Numba, only to compile.
"""

from __future__ import annotations

import inspect
import math
from collections import namedtuple
from collections.abc import Callable

import numpy as np
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from models.operations.kernels import BLOCK_COLUMNS, BLOCK_ROWS, PRODUCT, THREADS
from models.operations.loop_arguments import DECLARED, DTYPES

#: ln 2 in two parts. The first has so few digits that its product with a power's exponent is exact.
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(math.log(2.0) - 0.693359375)
LOG2_E = np.float32(math.log2(math.e))
#: Series of exp; the eighth term is below 2^-27 of it for arguments reduced to half of ln 2.
SERIES = [np.float32(1.0 / math.factorial(n)) for n in range(8)]
S2, S3, S4, S5, S6, S7 = SERIES[2:]
#: In float32, exp of any smaller number is 0.
MIN_EXPONENT = np.float32(-110.0)
MIN_INT32, MAX_INT32 = np.int32(-(2**31)), np.int32(2**31 - 1)
#: Weyl sequence and finalizer of SplitMix64 (Steele, Lea, Flood 2014, figures 16 and 17).
GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

_thread_number = types.ExternalFunction(THREADS["omp_get_thread_num"], types.int32())
_num_threads = types.ExternalFunction(THREADS["omp_get_num_threads"], types.int32())
_wait_for_threads = types.ExternalFunction(THREADS["GOMP_barrier"], types.void())
_MATRIX = types.int64, types.int32
_sgemm = types.ExternalFunction(
    PRODUCT, types.void(*[types.int32] * 6, types.float32, *_MATRIX * 2, types.float32, *_MATRIX)
)
_allocate_bytes = types.ExternalFunction("malloc", types.int64(types.int64))
_free_bytes = types.ExternalFunction("free", types.void(types.int64))


# -- the unpacking of arguments


def _define_cast(source_type: types.Type, target_type: types.Type, instruction: str) -> Callable:
    """Return a function for loops that casts a value by an instruction of LLVM.

    Args:
        source_type: Numba type of the argument.
        target_type: Numba type of the result.
        instruction: method of LLVM's instruction builder, such as ``bitcast``.
    """

    @intrinsic
    def cast(context, value):
        def code(context, builder, signature, arguments):
            return getattr(builder, instruction)(arguments[0], context.get_value_type(target_type))

        return target_type(source_type), code

    return cast


_float32_pointer, _float64_pointer, _int32_pointer, _int64_pointer, _uint32_pointer, _bool_pointer = (
    _define_cast(types.int64, types.CPointer(element), "inttoptr")
    for element in (types.float32, types.float64, types.int32, types.int64, types.uint32, types.uint8)
)
_float32_of_bits = _define_cast(types.int32, types.float32, "bitcast")
_bits_of_float32 = _define_cast(types.float32, types.int32, "bitcast")
_float64_of_bits = _define_cast(types.int64, types.float64, "bitcast")


@intrinsic
def _address(context, array):
    """Return the address of the first number of an array."""

    def code(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.int64))

    return types.int64(array), code


_UNPACKED_NUMBERS = {"float32": "np.float32(_float64_of_bits({}))", "float64": "_float64_of_bits({})", "int64": "{}"}


def record_reader(name: str) -> Callable:
    """Return a function for loops that unpacks declared fields from 64-bit numbers to a named tuple.

    A table becomes an array with a row of 64-bit numbers for each record.
    """
    fields = DECLARED[name]
    lines = [f"{axis} = packed[{index}]" for index, axis in enumerate(fields.axes)]
    values, index = {}, len(fields.axes)
    for field_name, field in fields.by_name.items():
        number = f"packed[{index}]"
        if field.dtype not in DTYPES:
            index += 1
            shape = f"(packed[{index}], {DECLARED[field.dtype].num_packed})"
            values[field_name] = f"carray(_int64_pointer({number}), {shape})"
        elif field.shape:
            values[field_name] = f"carray(_{field.dtype}_pointer({number}), ({', '.join(map(str, field.shape))},))"
            if field.is_optional:
                values[f"has_{field_name}"] = f"{number} != 0"
        else:
            values[field_name] = _UNPACKED_NUMBERS[field.dtype].format(number)
        index += 1
    lines.append(f"return Record({', '.join(values.values())})")
    namespace = {**globals(), "Record": namedtuple("Record", values)}
    exec("\n    ".join(["def read_record(packed):", *lines]), namespace)
    return njit(inline="always")(namespace["read_record"])


def compiled_loop(*fastmath: str) -> Callable[[Callable], Callable]:
    """Mark a loop, with its sums' fast-math flags: ``reassoc`` adds in several lanes, ``contract`` fuses products."""

    def mark_loop(function: Callable) -> Callable:
        vars(function)["fastmath"] = set(fastmath)
        return function

    return mark_loop


def emit_assembly(function: Callable) -> tuple[str, str]:
    """Compile a loop, which may be of another module; return its LLVM assembly and the name of its function there."""
    num_packed = DECLARED[function.__name__].num_packed
    names = inspect.signature(function).parameters
    values = ", ".join("call" if name == "call" else f"call.{name}" for name in names)
    namespace = {"carray": carray, "read": record_reader(function.__name__), "loop": njit(inline="always")(function)}
    exec(f"def entry(packed):\n    call = read(carray(packed, {num_packed}))\n    loop({values})", namespace)
    options = {"nopython": True, "error_model": "numpy", "fastmath": vars(function)["fastmath"]}
    machine_function = cfunc(types.void(types.CPointer(types.int64)), **options)(namespace["entry"])
    return machine_function.inspect_llvm(), machine_function.native_name


# -- memory and threads


@njit(inline="always")
def _own_share(length):
    """Return begin and end of this thread's share of ``length`` items."""
    thread, threads = _thread_number(), _num_threads()
    return length * thread // threads, length * (thread + 1) // threads


@njit(inline="always")
def _own_rows(rows):
    """Return the range of this thread's share of rows."""
    first, last = _own_share(rows)
    return range(first, last)


@njit(inline="always")
def _allocate(num_bytes):
    """Allocate memory; return the address to free, and the first address in it that begins a cache line.

    MKL may add up in an order that depends on where in a cache line its matrices begin.
    """
    memory = _allocate_bytes(num_bytes + 64)
    return memory, (memory + 63) // 64 * 64


# -- dropout


@njit(inline="always")
def _mix_bits(z):
    """Return a 64-bit integer with the bits of ``z`` mixed, as the last step of SplitMix64 does."""
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@compiled_loop()
def draw_mask(mask, seed, threshold):
    """Write whether 16-bit random numbers reach the threshold.

    Four of them are one 64-bit number of SplitMix64. A cell depends only on the seed and the cell's index.

    Args:
        mask: result, one byte of 0 or 1 for each cell, (cells,).
        seed: start of the sequence of random numbers, 64 bits.
        threshold: smallest 16-bit number that sets a cell, from 0 to 65536.
    """
    cells, threshold, state = mask.shape[0], np.uint64(threshold), np.uint64(seed)
    low = np.uint64(0xFFFF)
    words = cells // 4
    first, last = _own_share(words)
    mask_words = carray(_uint32_pointer(_address(mask)), words)
    begin = state + np.uint64(first + 1) * GAMMA
    for i in range(last - first):
        z = _mix_bits(begin + np.uint64(i) * GAMMA)
        word = np.uint64((z & low) >= threshold)
        word |= np.uint64(((z >> np.uint64(16)) & low) >= threshold) << np.uint64(8)
        word |= np.uint64(((z >> np.uint64(32)) & low) >= threshold) << np.uint64(16)
        word |= np.uint64((z >> np.uint64(48)) >= threshold) << np.uint64(24)
        mask_words[first + i] = np.uint32(word)
    if last == words:
        z = _mix_bits(state + np.uint64(words + 1) * GAMMA)
        for i in range(cells - 4 * words):
            mask[4 * words + i] = np.uint8(((z >> np.uint64(16 * i)) & low) >= threshold)


@compiled_loop()
def keep(x, keep_mask, out, scale):
    """Write x * scale where the mask is set, and 0 elsewhere.

    Args:
        x: input array.
        keep_mask: bool mask of the elements to keep.
        out: array for the result.
        scale: factor of the kept elements.
    """
    first, last = _own_share(x.shape[0])
    x, keep_mask, out = x[first:last], keep_mask[first:last], out[first:last]
    for i in range(last - first):
        out[i] = x[i] * (scale if keep_mask[i] else np.float32(0.0))


@compiled_loop()
def rectify(x, gate, out):
    """Write x where the gate is above 0 or NaN, and 0 elsewhere.

    Args:
        x: input, (numbers,): the input of ReLU, or in the backward the gradient of its output.
        gate: numbers that decide, (numbers,): the input of ReLU, or in the backward its output.
        out: result, (numbers,).
    """
    first, last = _own_share(x.shape[0])
    x, gate, out = x[first:last], gate[first:last], out[first:last]
    for i in range(last - first):
        out[i] = np.float32(0.0) if gate[i] <= np.float32(0.0) else x[i]


# -- gradients of parameters


@njit(inline="always")
def _overlap(first, last, begin, count):
    """Return the part of ``count`` items from ``begin`` that is in ``first`` to ``last``, relative to ``begin``.

    Args:
        first: index of the first item of a thread's share.
        last: index after the last item of the share.
        begin: index of the first of the ``count`` items.
        count: number of items.
    """
    start = max(first - begin, 0)
    return start, max(min(last - begin, count), start)


_read_squared_tensor, _read_parameter = record_reader("squared_tensor"), record_reader("adamw_parameter")


@compiled_loop("reassoc", "contract")
def square_sums(sums, tensors):
    """Write the sum of squares of each block of BLOCK_COLUMNS numbers; the last block of a tensor may be shorter."""
    first, last = _own_share(sums.shape[0])
    begin = 0
    for tensor in range(tensors.shape[0]):
        x = _read_squared_tensor(tensors[tensor]).x
        numbers = x.shape[0]
        blocks = (numbers + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
        start, end = _overlap(first, last, begin, blocks)
        for block in range(start, end):
            count = min(BLOCK_COLUMNS, numbers - block * BLOCK_COLUMNS)
            block_x, total = x[block * BLOCK_COLUMNS : block * BLOCK_COLUMNS + count], np.float32(0.0)
            for i in range(count):
                total += block_x[i] * block_x[i]
            sums[begin + block] = total
        begin += blocks


@compiled_loop("contract")
def adamw(beta1, beta2, epsilon, factor, parameters):
    """Update parameters by a step of AdamW, in place.

    Gradients are multiplied by ``factor``. The powers of beta1 and beta2 belong to the current step.

    Args:
        beta1: decay rate of the first moments.
        beta2: decay rate of the second moments.
        epsilon: number that is added to the roots of the second moments.
        factor: factor of the gradients.
        parameters: table of the records ``adamw_parameter``: arrays and rates of each parameter.
    """
    rest1, rest2 = np.float32(1.0) - beta1, np.float32(1.0) - beta2
    numbers = 0
    for index in range(parameters.shape[0]):
        numbers += _read_parameter(parameters[index]).weight.shape[0]
    first, last = _own_share(numbers)
    begin = 0
    for index in range(parameters.shape[0]):
        parameter = _read_parameter(parameters[index])
        start, end = _overlap(first, last, begin, parameter.weight.shape[0])
        weight, grad = parameter.weight[start:end], parameter.gradient[start:end]
        mean, square = parameter.first_moment[start:end], parameter.second_moment[start:end]
        root = math.sqrt(1.0 - np.float64(parameter.beta2_power[0]))
        rate, own_epsilon = parameter.rate, np.float32(epsilon * root)
        step = np.float32(rate * root / (1.0 - np.float64(parameter.beta1_power[0])))
        decay = np.float32(rate * parameter.decay)
        for i in range(end - start):
            clipped = factor * grad[i]
            new_mean = beta1 * mean[i] + rest1 * clipped
            new_square = beta2 * square[i] + rest2 * (clipped * clipped)
            mean[i], square[i] = new_mean, new_square
            weight[i] -= decay * weight[i] + step * (new_mean / (math.sqrt(new_square) + own_epsilon))
        begin += parameter.weight.shape[0]
    _wait_for_threads()
    if _thread_number() == 0:
        for index in range(parameters.shape[0]):
            parameter = _read_parameter(parameters[index])
            parameter.beta1_power[0] *= beta1
            parameter.beta2_power[0] *= beta2


# -- rows


@compiled_loop()
def add_row(x, row):
    """Add a row to all rows of x, in place."""
    rows, width = x.shape
    for index in _own_rows(rows):
        x_row = x[index]
        for i in range(width):
            x_row[i] += row[i]


@compiled_loop()
def scale_columns(table, factors, out):
    """Copy the table for each example, and multiply each column by its factor.

    Args:
        table: table, (rows, columns, width).
        factors: factor of each column in each example, (B, columns).
        out: result, (B, rows, columns, width).
    """
    batch, rows, columns, width = out.shape
    positions = rows * columns
    for index in _own_rows(batch * positions):
        example, row, column = index // positions, index % positions // columns, index % columns
        table_row, out_row, factor = table[row, column], out[example, row, column], factors[example, column]
        for i in range(width):
            out_row[i] = table_row[i] * factor


@compiled_loop()
def scale_columns_backward(grad, factors, out):
    """Write the gradient of the table, which is the sum over the examples.

    Args:
        grad: gradient of the output, with the examples on the first axis.
        factors: factors of the columns.
        out: array for the result.
    """
    batch, rows, columns, width = grad.shape
    for index in _own_rows(rows * columns):
        row, column = index // columns, index % columns
        out_row = out[row, column]
        out_row[:] = np.float32(0.0)
        for example in range(batch):
            grad_row, factor = grad[example, row, column], factors[example, column]
            for i in range(width):
                out_row[i] += grad_row[i] * factor


@compiled_loop()
def gather_rows(x, index, out):
    """Write sums of rows of x: a row of the result is the sum of one row in each round.

    Args:
        x: matrix, (source rows, width).
        index: source row of each result row in each round, (rounds, rows).
        out: result, (rows, width).
    """
    rounds, rows = index.shape
    width = x.shape[1]
    for row in _own_rows(rows):
        out_row, x_row = out[row], x[index[0, row]]
        for i in range(width):
            out_row[i] = x_row[i]
        for step in range(1, rounds):
            x_row = x[index[step, row]]
            for i in range(width):
                out_row[i] += x_row[i]


# -- layer norm


@njit(inline="always")
def _mean_and_scale(row, width, epsilon):
    """Return the mean of a row, and the factor that gives it variance 1.

    Args:
        row: the row.
        width: number of its elements.
        epsilon: number added to the variance.
    """
    total = np.float32(0.0)
    for i in range(width):
        total += row[i]
    mean = total / np.float32(width)
    squares = np.float32(0.0)
    for i in range(width):
        squares += (row[i] - mean) * (row[i] - mean)
    return mean, np.float32(1.0) / math.sqrt(squares / np.float32(width) + epsilon)


@njit(inline="always")
def _normalize_rows(x, gain, bias, out, epsilon):
    """Write the layer norm of this thread's share of rows.

    Args:
        x: matrix, (rows, width).
        gain: factors of the columns, (width,).
        bias: bias of the columns, (width,).
        out: array for the result, (rows, width).
        epsilon: number added to the variance.
    """
    rows, width = x.shape
    for row in _own_rows(rows):
        x_row, out_row = x[row], out[row]
        mean, scale = _mean_and_scale(x_row, width, epsilon)
        for i in range(width):
            out_row[i] = (x_row[i] - mean) * scale * gain[i] + bias[i]


@compiled_loop("reassoc", "contract")
def norm_rows(x, gain, bias, out, epsilon):
    """Write the layer norm of each row.

    Args:
        x: matrix, (rows, width).
        gain: factors of the columns, (width,).
        bias: bias of the columns, (width,).
        out: array for the result, (rows, width).
        epsilon: number added to the variance.
    """
    _normalize_rows(x, gain, bias, out, epsilon)


@compiled_loop("reassoc", "contract")
def norm_rows_backward(grad, x, gain, out, sums, epsilon):
    """Write the gradient of x; and for each block of BLOCK_ROWS rows the sums over its rows for gain and bias.

    Args:
        grad: gradient of the output of :func:`norm_rows`, (rows, width).
        x: input of :func:`norm_rows`, (rows, width).
        gain: factor of each column, (width,).
        out: gradient of ``x``, a result, (rows, width).
        sums: gradients of gain and bias, summed over the rows of each block, a result, (blocks, 2, width).
        epsilon: number that is added to the variance of each row.
    """
    rows, width = x.shape
    for block in _own_rows(sums.shape[0]):
        grad_gain, grad_bias = sums[block, 0], sums[block, 1]
        grad_gain[:] = np.float32(0.0)
        grad_bias[:] = np.float32(0.0)
        for row in range(block * BLOCK_ROWS, min(rows, (block + 1) * BLOCK_ROWS)):
            grad_row, x_row, out_row = grad[row], x[row], out[row]
            mean, scale = _mean_and_scale(x_row, width, epsilon)
            total, projection = np.float32(0.0), np.float32(0.0)
            for i in range(width):
                inner = grad_row[i] * gain[i]
                total += inner
                projection += inner * ((x_row[i] - mean) * scale)
            total /= np.float32(width)
            projection /= np.float32(width)
            for i in range(width):
                normed = (x_row[i] - mean) * scale
                out_row[i] = (grad_row[i] * gain[i] - total - normed * projection) * scale
                grad_gain[i] += grad_row[i] * normed
                grad_bias[i] += grad_row[i]


# -- the residual streams


@compiled_loop()
def add_on_grid(exact, update, out, rounded_out, rounder, sign):
    """Write the sum of the exact stream and the update, which is rounded to the grid; and the sum in float32.

    Args:
        exact: stream on the grid, float64.
        update: float32 update of the stream.
        out: array for the new stream, float64.
        rounded_out: array for the new stream in float32.
        rounder: number that rounds to the grid if it is added and subtracted.
        sign: 1 to add the update, -1 to subtract it.
    """
    first, last = _own_share(exact.shape[0])
    exact, update, out, rounded_out = exact[first:last], update[first:last], out[first:last], rounded_out[first:last]
    for i in range(last - first):
        total = exact[i] + sign * ((np.float64(update[i]) + rounder) - rounder)
        out[i] = total
        rounded_out[i] = np.float32(total)


# -- softmax


@njit(inline="always")
def _exp(x):
    """Return exp of a number of at most 0, correct to its last or next-to-last digit.

    Below 2^-126, float32 has fewer digits.
    """
    x = MIN_EXPONENT if x < MIN_EXPONENT else x  # not max: NaN stays NaN
    power = np.floor(x * LOG2_E + np.float32(0.5))
    rest = x - power * LN2_HIGH - power * LN2_LOW
    tail = S2 + rest * (S3 + rest * (S4 + rest * (S5 + rest * (S6 + rest * S7))))
    series = np.float32(1.0) + (rest + rest * rest * tail)
    exponent = np.int32(power)
    half = exponent >> np.int32(1)  # float32 does not have 2^-150, but perhaps the product of two halves
    low = np.int32((half + np.int32(127)) << np.int32(23))
    high = np.int32((exponent - half + np.int32(127)) << np.int32(23))
    return series * _float32_of_bits(low) * _float32_of_bits(high)


@njit(inline="always")
def _swap_order(bits):
    """Map the bits of a float32 to an integer with the same order, or back.

    LLVM vectorizes the maximum of a row only for integers, because NaN has no order.
    """
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(inline="always")
def _largest(row, width):
    """Return the largest number of a row, NaN being larger than all."""
    top = MIN_INT32
    for i in range(width):
        top = max(top, _swap_order(_bits_of_float32(row[i])))
    return _float32_of_bits(_swap_order(top))


@njit(inline="always")
def _softmax_in_place(row, width):
    """Replace a row by its softmax; return its largest score and the sum of exp(score - largest)."""
    largest, total = _largest(row, width), np.float32(0.0)
    for i in range(width):
        weight = _exp(row[i] - largest)
        row[i] = weight
        total += weight
    share = np.float32(1.0) / total
    for i in range(width):
        row[i] *= share
    return largest, total


@compiled_loop("reassoc", "contract")
def softmax_rows(scores, bias, has_bias, out, divisor):
    """Write the softmax of scores / divisor + bias; a group of rows is several times the queries of the bias.

    Args:
        scores: scores, (rows, width).
        bias: bias, (groups, queries, width), which is read only if ``has_bias``.
        has_bias: whether a bias is added.
        out: probabilities, the result, (rows, width).
        divisor: divisor of the scores.
    """
    rows, width = scores.shape
    groups, queries, _ = bias.shape
    rows_of_group = rows // groups
    for row in _own_rows(rows):
        score_row, out_row = scores[row], out[row]
        for i in range(width):
            out_row[i] = score_row[i] / divisor
        if has_bias:
            bias_row = bias[row // rows_of_group, row % queries]
            for i in range(width):
                out_row[i] += bias_row[i]
        _softmax_in_place(out_row, width)


@njit(inline="always")
def _softmax_gradient(grad, weights, out, width, grad_log_normalizer):
    """Write the gradient of a row's scores, of the gradients of its softmax and of the log of its normalizer.

    Args:
        grad: gradient of the row's softmax, (width,).
        weights: softmax of the row, (width,).
        out: gradient of the scores, the result, (width,).
        width: length of the row.
        grad_log_normalizer: gradient of the log of the row's normalizer, a number.
    """
    mean, top = np.float32(0.0), np.int32(0)
    for i in range(width):
        mean += grad[i] * weights[i]
        top = max(top, _bits_of_float32(weights[i]))
    correction = np.float32(0.0)
    if _float32_of_bits(top) < np.float32(1.0):  # if a weight is 1, float64 loses the rest, too
        for i in range(width):
            correction += (grad[i] - mean) * weights[i]
    for i in range(width):
        out[i] = weights[i] * (((grad[i] - mean) - correction) + grad_log_normalizer)


@compiled_loop("reassoc", "contract")
def softmax_rows_backward(grad, probabilities, out, divisor):
    """Write the gradient of the scores.

    Args:
        grad: gradient of the probabilities.
        probabilities: softmax of the scores; a row is along the last axis.
        out: array for the result.
        divisor: divisor of the scores.
    """
    rows, width = grad.shape
    for row in _own_rows(rows):
        out_row = out[row]
        _softmax_gradient(grad[row], probabilities[row], out_row, width, np.float32(0.0))
        for i in range(width):
            out_row[i] /= divisor


# -- cross entropy


@compiled_loop("reassoc", "contract")
def cross_entropy_rows(logits, labels, losses, normalizers):
    """Write -log softmax(row)[label]; and for each row the largest score and the sum of exp(score - largest).

    Args:
        logits: scores, (N, classes).
        labels: class of each row, (N,).
        losses: array for the losses, (N,).
        normalizers: array for the largest score and the sum of each row, (N, 2).
    """
    rows, width = logits.shape
    for row in _own_rows(rows):
        logit_row = logits[row]
        largest = _largest(logit_row, width)
        total = np.float64(0.0)
        for begin in range(0, width, BLOCK_COLUMNS):
            block_sum = np.float32(0.0)
            for i in range(begin, min(width, begin + BLOCK_COLUMNS)):
                block_sum += _exp(logit_row[i] - largest)
            total += np.float64(block_sum)
        # In this order, a small loss keeps its digits next to large scores.
        losses[row] = np.float32(math.log(total) + (np.float64(largest) - np.float64(logit_row[labels[row]])))
        normalizers[row, 0] = largest
        normalizers[row, 1] = np.float32(total)


@compiled_loop("reassoc", "contract")
def cross_entropy_rows_backward(grad, logits, labels, normalizers, out):
    """Write the gradient of the logits; it is 0, without computation, for rows whose loss has gradient 0.

    Args:
        grad: gradient of each loss, (N,).
        logits: scores, (N, classes).
        labels: class of each row, (N,).
        normalizers: largest score and sum of exp(score - largest) of each row, (N, 2).
        out: array for the result, (N, classes).
    """
    rows, width = logits.shape
    for row in _own_rows(rows):
        logit_row, out_row, row_grad = logits[row], out[row], grad[row]
        if row_grad == np.float32(0.0):
            out_row[:] = np.float32(0.0)
            continue
        largest, share = normalizers[row, 0], row_grad / normalizers[row, 1]
        for i in range(width):
            out_row[i] = _exp(logit_row[i] - largest) * share
        out_row[labels[row]] -= row_grad


# -- LSH's keys


@compiled_loop("reassoc", "contract")
def key_rows(x, out, epsilon, factor):
    """Write rows with mean square 1, times the factor.

    Args:
        x: matrix, (rows, width).
        out: array for the result, (rows, width).
        epsilon: number added to the mean square.
        factor: factor of the result.
    """
    rows, width = x.shape
    for row in _own_rows(rows):
        x_row, out_row = x[row], out[row]
        squares = np.float32(0.0)
        for i in range(width):
            squares += x_row[i] * x_row[i]
        scale = factor / math.sqrt(squares / np.float32(width) + epsilon)
        for i in range(width):
            out_row[i] = x_row[i] * scale


@compiled_loop("reassoc", "contract")
def key_rows_backward(grad, x, out, epsilon, factor):
    """Write the gradient of x.

    Args:
        grad: gradient of the output, (rows, width).
        x: matrix, (rows, width).
        out: array for the result, (rows, width).
        epsilon: number added to the mean square.
        factor: factor of the output.
    """
    rows, width = x.shape
    for row in _own_rows(rows):
        grad_row, x_row, out_row = grad[row], x[row], out[row]
        squares, projection = np.float32(0.0), np.float32(0.0)
        for i in range(width):
            squares += x_row[i] * x_row[i]
            projection += grad_row[i] * x_row[i]
        mean_square = squares / np.float32(width) + epsilon
        scale = factor / math.sqrt(mean_square)
        projection /= np.float32(width) * mean_square
        for i in range(width):
            out_row[i] = (grad_row[i] - x_row[i] * projection) * scale


# -- LSH's buckets


@njit(inline="always")
def _nearest_axis(row):
    """Return the index of the first largest number of [row, -row]."""
    width, highest, lowest = row.shape[0], 0, 0
    for i in range(1, width):
        highest = i if row[i] > row[highest] else highest
        lowest = i if row[i] < row[lowest] else lowest
    return highest if row[highest] >= -row[lowest] else width + lowest


@compiled_loop()
def nearest_axes(x, out):
    """Write the nearest axis of each row."""
    for row in _own_rows(x.shape[0]):
        out[row] = _nearest_axis(x[row])


# -- attention between chunks


@njit(inline="always")
def _multiply(a, b, out, is_a_transposed, is_b_transposed, is_added):
    """Write the product of two matrices, or add it to ``out``. Rows may be strided, columns are contiguous.

    Args:
        a: left matrix, (M, K), or (K, M) if it is transposed.
        b: right matrix, (K, N), or (N, K) if it is transposed.
        out: array for the product, (M, N).
        is_a_transposed: whether ``a`` is transposed.
        is_b_transposed: whether ``b`` is transposed.
        is_added: whether the product is added to ``out``.
    """
    _sgemm(
        np.int32(101),  # row by row
        np.int32(112 if is_a_transposed else 111),
        np.int32(112 if is_b_transposed else 111),
        np.int32(out.shape[0]),
        np.int32(out.shape[1]),
        np.int32(a.shape[0] if is_a_transposed else a.shape[1]),
        np.float32(1.0),
        _address(a),
        np.int32(a.strides[0] // 4),
        _address(b),
        np.int32(b.strides[0] // 4),
        np.float32(is_added),
        _address(out),
        np.int32(out.strides[0] // 4),
    )


@njit(inline="always")
def _position(call, ring, chunk, row):
    """Return the position of a query or key in its text; 0 if no mask needs it.

    Args:
        call: arguments of the loop; only ``positions`` and ``has_positions`` are read.
        ring: index of the example and head, whose chunks form a ring.
        chunk: index of the chunk in its ring.
        row: index of the query or key in its chunk.
    """
    return np.int32(call.positions[ring, chunk, row]) if call.has_positions else np.int32(0)


@njit(inline="always")
def _mask_row(call, position, key_positions, hidden_until, row, masked_value, own_value):
    """Replace the numbers of keys that a query does not see, and then of the query's own key if it is masked.

    Args:
        call: arguments of :func:`attend_chunks`.
        position: position of the query.
        key_positions: position of each key, int32.
        hidden_until: first position of a query that sees each key, int32.
        row: number of each key.
        masked_value: replacement for keys that the query does not see.
        own_value: replacement for the query's own key.
    """
    if call.has_positions or call.has_token_mask:
        for i in range(row.shape[0]):
            row[i] = masked_value if hidden_until[i] > position else row[i]
    if call.hides_itself and call.has_positions:
        for i in range(row.shape[0]):
            row[i] = own_value if key_positions[i] == position else row[i]


@njit(inline="always")
def _weigh_keys(call, ring, chunk, weights, key_positions, hidden_until):
    """Write the softmax of a chunk's masked scores, (size, keys), and the other arguments of :func:`_mask_row`.

    Args:
        call: arguments of the attention loop.
        ring: index of the example and head, whose chunks form a ring.
        chunk: index of the queries' chunk in its ring.
        weights: softmax of the scores, a result, (size, keys).
        key_positions: position of each key in its text, a result, int32 (keys,).
        hidden_until: first position of a query that sees each key, a result, int32 (keys,).
    """
    size, order = call.query.shape[2], call.order[chunk]
    for part in range(order.shape[0]):
        key_chunk, begin = order[part], part * size
        scores = weights[:, begin : begin + size]
        _multiply(call.query[ring, chunk], call.key[ring, key_chunk], scores, False, True, False)
        for i in range(size):
            position = _position(call, ring, key_chunk, i)
            key_positions[begin + i] = position
            hidden_until[begin + i] = position if call.is_causal else MIN_INT32
            if call.has_token_mask and not call.token_mask[ring, key_chunk, i]:
                hidden_until[begin + i] = MAX_INT32
    for row in range(size):
        score_row, position = weights[row], _position(call, ring, chunk, row)
        _mask_row(call, position, key_positions, hidden_until, score_row, call.masked_score, call.own_score)
        largest, total = _softmax_in_place(score_row, score_row.shape[0])
        if call.has_log_normalizer:
            call.log_normalizer[ring, chunk, row, 0] = largest + math.log(total)


@njit(inline="always")
def _apply_dropout(x, keep_mask, rate):
    """Apply dropout to a matrix, in place.

    Args:
        x: the matrix.
        keep_mask: bool mask of the elements to keep.
        rate: probability of dropping an element.
    """
    (rows, width), scale = x.shape, np.float32(1.0 / (1.0 - rate))
    for row in range(rows):
        x_row, mask_row = x[row], keep_mask[row]
        for i in range(width):
            x_row[i] *= scale if mask_row[i] else np.float32(0.0)


@compiled_loop("reassoc", "contract")
def attend_chunks(call):
    """Write the attention of each chunk to the chunks of its ring that ``order`` lists, and the logs of normalizers."""
    rings, chunks, size, _ = call.query.shape
    order, width = call.order, size * call.order.shape[1]
    memory, begin_memory = _allocate(4 * (size + 2) * width)
    weights = carray(_float32_pointer(begin_memory), (size, width))
    key_numbers = carray(_int32_pointer(begin_memory + 4 * size * width), (2, width))
    key_positions, hidden_until = key_numbers[0], key_numbers[1]
    for ring in _own_rows(rings):
        for chunk in range(chunks):
            _weigh_keys(call, ring, chunk, weights, key_positions, hidden_until)
            if call.has_keep_mask:
                _apply_dropout(weights, call.keep_mask[ring, chunk], call.rate)
            for part in range(order.shape[1]):
                part_weights, value = weights[:, part * size : (part + 1) * size], call.value[ring, order[chunk, part]]
                _multiply(part_weights, value, call.out[ring, chunk], False, False, part > 0)
    _free_bytes(memory)


@compiled_loop("reassoc", "contract")
def attend_chunks_backward(call):
    """Write the gradients of query, key and value; the weights are computed again."""
    rings, chunks, size, _ = call.query.shape
    order, width, zero = call.order, size * call.order.shape[1], np.float32(0.0)
    memory, begin_memory = _allocate(4 * (2 * size + 2) * width)
    weights = carray(_float32_pointer(begin_memory), (size, width))
    grads = carray(_float32_pointer(begin_memory + 4 * size * width), (size, width))  # first the weights after dropout
    key_numbers = carray(_int32_pointer(begin_memory + 8 * size * width), (2, width))
    key_positions, hidden_until = key_numbers[0], key_numbers[1]
    for ring in _own_rows(rings):
        call.grad_key[ring][:] = zero
        call.grad_value[ring][:] = zero
        for chunk in range(chunks):
            query, grad, grad_query = call.query[ring, chunk], call.grad[ring, chunk], call.grad_query[ring, chunk]
            _weigh_keys(call, ring, chunk, weights, key_positions, hidden_until)
            for row in range(size):
                for i in range(width):
                    grads[row, i] = weights[row, i]
            if call.has_keep_mask:
                _apply_dropout(grads, call.keep_mask[ring, chunk], call.rate)
            for part in range(order.shape[1]):
                key_chunk, part_grads = order[chunk, part], grads[:, part * size : (part + 1) * size]
                _multiply(part_grads, grad, call.grad_value[ring, key_chunk], True, False, True)
                _multiply(grad, call.value[ring, key_chunk], part_grads, False, True, False)
            if call.has_keep_mask:
                _apply_dropout(grads, call.keep_mask[ring, chunk], call.rate)
            for row in range(size):
                row_grad, position = grads[row], _position(call, ring, chunk, row)
                from_normalizer = (
                    call.grad_log_normalizer[ring, chunk, row, 0] if call.has_grad_log_normalizer else zero
                )
                _softmax_gradient(row_grad, weights[row], row_grad, width, from_normalizer)
                _mask_row(call, position, key_positions, hidden_until, row_grad, zero, zero)
            for part in range(order.shape[1]):
                key_chunk, part_grads = order[chunk, part], grads[:, part * size : (part + 1) * size]
                _multiply(part_grads, call.key[ring, key_chunk], grad_query, False, False, part > 0)
                _multiply(part_grads, query, call.grad_key[ring, key_chunk], True, False, True)
    _free_bytes(memory)
