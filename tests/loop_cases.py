"""Run the compiled loops in tests: at sizes next to every constant in their code, and one thread after another."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import paddle
from gates import ROOT

from models.operations import loop_code
from toolkit.parity.candidate import loop_errors
from toolkit.parity.judge.loops import faults
from toolkit.parity.measure import loop_accuracy
from toolkit.parity.measure.loop_accuracy import CHECKS, LoopCall
from toolkit.parity.mutants.loops import compile_loop, load_code

#: Sources of the loops, and sources that decide how the loops are called.
SOURCES = [
    f"models/operations/{name}.py"
    for name in ("loops", "decoder_loops", "loop_code", "compiled", "ops", "randomness", "kernels")
]
#: Larger constants are not sizes but bit masks, for example.
LARGEST = 2**16
#: Tested in any case: also next to the limits of 15 and 16 bits, as the released checkpoints have so many positions.
ROUND = [2**power for power in range(17)]
#: Maximum numbers of a case, and of one parameter or cache of a layer.
MOST, MOST_OF_A_LAYER = 2**17, 2**13
#: The maximum for a case whose other dimensions are 1, such as chunks of 256 or 65,536 positions.
MOST_ALONE = 2**18
#: Numbers of threads that share the work of a loop.
THREAD_COUNTS = (1, 2, 3, 5)
#: Guard cells on either side of an output, which must not be written.
GUARD = 64


@functools.cache
def constants(source: str) -> set[int]:
    """Return the integers in a source, and the integers that are computed only from constants."""
    constant_nodes = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    values = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.expr) and all(isinstance(part, constant_nodes) for part in ast.walk(node)):
            with contextlib.suppress(TypeError):
                values.add(eval(compile(ast.Expression(node), "a constant", "eval")))
    return {value for value in values if type(value) is int}


def sizes(*more: str) -> list[int]:
    """Return each constant of the loops' sources or of `more`, and its two neighbors."""
    values = set(ROUND).union(*(constants((ROOT / name).read_text()) for name in SOURCES), *map(constants, more))
    return sorted({value + offset for value in values for offset in (-1, 0, 1) if 0 < value + offset <= LARGEST + 1})


def layer(rows: int, heads: int, depth: int, inner: int, room: int) -> list[list[int]]:
    """Return the shapes of a decoder layer's cache and parameters."""
    width, cache = heads * depth, [rows, heads, room, depth]
    norm, square = [[width], [width]], [[width, width], [width]]
    return [cache, cache, *norm, *4 * square, *norm, [width, inner], [inner], [inner, width], [width]]


def decoder(
    tokens: list[int],
    heads: int,
    depth: int,
    inner: int,
    classes: int,
    room: int,
    layers: int,
    has_mask: bool,
    epsilon: float,
) -> list:
    """Return the arguments of a decoder at one position; with a mask, at the last position that fits."""
    rows, width = tokens[0], heads * depth
    past = room - 1 if has_mask else room - 3
    shapes = [tokens, [classes, width], [room + 2, width], layers * [layer(rows, heads, depth, inner, room)]]
    output_layers = [[[width], [width]], [[classes, width], [classes]]]
    return [*shapes, *output_layers, [rows, room] if has_mask else None, past, epsilon, 0.1]


def reversible(
    tokens: list[int],
    heads: int,
    depth: int,
    inner: int,
    classes: int,
    past: int,
    kinds: list[list[int]],
    epsilon: float = 1e-6,
) -> list:
    """Return the arguments of a reversible decoder.

    Its layers are given by chunk length, chunks before, rounds and factors of buckets. A layer without rounds is local,
    and one without factors is not hashed.
    """
    rows, width, attention_width = tokens[0], 4, heads * depth
    norm, maps = [[width], [width]], [[attention_width, width], None, [width], [width]]
    maps += [[width, inner], [inner], [inner, width], [width]]
    layers = []
    for size, chunks_before, rounds, *axes in kinds:
        cache, project = [rows, heads, past + 2, depth], [width, attention_width]
        hashing = [None, None, None, None, 0, 1]
        if axes:
            sorted_in = [rows, heads, rounds, past + 2]
            hashing = [sorted_in, sorted_in, [heads, depth, rounds, sum(axes)], [len(axes)], sum(axes), rounds]
        parameters = [*norm, project, None if rounds else project, project, *maps]
        layers.append([cache, cache, *hashing, size, chunks_before, parameters])
    output_layers = [[[2 * width], [2 * width]], [[2 * width, classes], [classes]]]
    longest = math.lcm(*(size for size, *_ in kinds))
    padded_length = -(-(past + 1) // longest) * longest
    return [tokens, [classes, width], [width], layers, *output_layers, past, padded_length, epsilon, epsilon, -1e5]


def attention(
    rings: int,
    chunks: int,
    size: int,
    depth: int,
    parts: int,
    causal: bool = False,
    rate: float = 0.1,
    places: bool = True,
    has_row_mask: bool = True,
) -> list:
    """Return the arguments of chunked attention, forward and backward; a dropout rate of 0 draws no mask."""
    vectors, rows = [rings, chunks, size, depth], [rings, chunks, size]
    masks = [rows if places else None, rows if has_row_mask else None, causal, not causal, -1e9, -1e5]
    return [vectors, vectors, vectors, [chunks, parts], *masks, [*rows, size * parts] if rate else None, rate]


def backward(*dimensions: int, **masks: Any) -> list:
    """Return the arguments of its backward pass, with gradients of the output and, for dropout, the normalizer."""
    arguments = attention(*dimensions, **masks)
    return [*arguments, arguments[0], [*arguments[0][:-1], 1] if arguments[-2] else None]


def adamw(*shapes: list[int]) -> list:
    """Return the arguments of a step of AdamW for parameters of these shapes."""
    rates, decays = ([value * (1 + number) for number in range(len(shapes))] for value in (1e-3, 0.1))
    tensors = [tensor for shape in shapes for tensor in (*[shape] * 4, [1], [1])]
    return [rates, decays, 0.9, 0.999, 1e-8, 0.3, *tensors]


#: Functions that build the arguments of each loop; the defaults hold while another dimension varies.
CALLS: dict[str, list[Callable[..., list]]] = {
    "keep": [lambda rows=3, width=5: [[rows, width], [rows, width], 1 / 0.9]],
    "relu": [lambda rows=3, width=5: [[rows, width]]],
    "relu_backward": [lambda rows=3, width=5: [[rows, width], [rows, width]]],
    "square_sums": [
        lambda rows=3, width=5: [[rows, width]],
        lambda first=3, second=5, third=2: [[first], [second, 3], [third]],
    ],
    "adamw_": [lambda first=3, second=5, third=2: adamw([first], [second, 3], [third])],
    "add_row_": [lambda rows=3, width=5: [[rows, width], [width]]],
    "gather_rows": [
        lambda rows=3, width=5: [[7, width], [rows]],
        lambda rows=3, width=5: [[7, width], [4, rows]],  # the number of rounds is the number of chunks that see one
    ],
    "scale_columns": [lambda rows=3, columns=2, width=3, batch=2: [[rows, columns, width], [batch, columns]]],
    "scale_columns_backward": [
        lambda rows=3, columns=2, width=3, batch=2: [[batch, rows, columns, width], [batch, columns]]
    ],
    "layer_norm": [
        lambda rows=3, width=5: [[rows, width], [width], [width], 1e-6],
        lambda length=3: [[2, length, 4], [4], [4], 1e-12],
    ],
    "layer_norm_backward": [
        lambda rows=3, width=5: [[rows, width], [rows, width], [width], 1e-12],
        lambda length=3: [[2, length, 4], [2, length, 4], [4], 1e-6],
    ],
    "add_on_grid": [lambda rows=3, width=5: [[rows, width], [rows, width], 1.5 * 2.0**30, -1.0]],
    "nearest_axes": [lambda rows=3, width=5: [[rows, width]]],
    "attend_chunks": [
        lambda rings=2, chunks=3, size=3, depth=5: [*attention(rings, chunks, size, depth, 2), True],
        lambda chunks=2: [*attention(2, chunks, 4, 3, 3, causal=True, rate=0.3), True],
        lambda chunks=3: [*attention(2, chunks, 2, 3, 2, places=False), False],
        lambda rings=2: [*attention(rings, 1, 3, 4, 1, rate=0.0, has_row_mask=False), False],
    ],
    "attend_chunks_backward": [
        lambda rings=2, chunks=3, size=3, depth=5: backward(rings, chunks, size, depth, 2),
        lambda chunks=2: backward(2, chunks, 4, 3, 3, causal=True, rate=0.3),
        lambda chunks=3: backward(2, chunks, 2, 3, 2, places=False),
        lambda rings=2: backward(rings, 1, 3, 4, 1, rate=0.0, has_row_mask=False),
    ],
    "softmax": [
        lambda rows=3, width=5: [[rows, width], 1.0, None],
        lambda batch=2, heads=3, queries=2, keys=5: [[batch, heads, queries, keys], 8.0, [batch, 1, queries, keys]],
        lambda heads=3, queries=2, keys=5: [[2, heads, queries, keys], 4.0, [queries, keys]],
    ],
    "softmax_backward": [
        lambda rows=3, width=5: [[rows, width], [rows, width], 1.0],
        lambda rows=3, width=5: [[rows, width], [rows, width], 80**0.5],
    ],
    "cross_entropy": [lambda rows=3, width=5: [[rows, width], [rows]]],
    "cross_entropy_backward": [lambda rows=9, width=5: [[rows], [rows, width], [rows], [rows, 2]]],
    "keys": [lambda rows=3, width=5: [[rows, width], 1e-6, 0.125]],
    "keys_backward": [lambda rows=3, width=5: [[rows, width], [rows, width], 1e-12, 0.125]],
    "decoder_step": [
        lambda rows=3, depth=3, inner=5, classes=7: decoder([rows, 1], 2, depth, inner, classes, 7, 1, False, 1e-6),
        lambda heads=2, past=4: decoder([2], heads, 2, 9, 5, past + 1, 2, True, 1e-12),
        lambda inner=5: decoder([2], 2, 3, inner, 5, 7, 2, False, 0.3),  # counts in every norm
    ],
    "reversible_step": [
        lambda rows=3, depth=3, inner=5, classes=7: reversible(
            [rows, 1], 2, depth, inner, classes, 9, [[4, 1, 0], [2, 1, 2, 3]]
        ),
        lambda past=12, axes=2: reversible([2], 2, 3, 5, 5, past, [[3, 1, 1, 1, axes], [6, 2, 0], [3, 2, 3, axes]]),
        lambda heads=2, size=4: reversible([2], heads, 3, 4, 5, 2 * size - 1, [[size, 1, 1, 2], [2 * size, 0, 1]], 0.3),
    ],
}
#: Loops whose threads wait for each other.
TOGETHER = ("decoder_step", "reversible_step", "adamw_")


def calls(function: str, *more: str) -> Iterator[LoopCall]:
    """Yield calls with each dimension at each of :func:`sizes`, and a call with large dimensions.

    If a case is too large, all its other dimensions are 1.
    """
    for build_arguments in CALLS[function]:
        dimensions = inspect.signature(build_arguments).parameters
        cases = [{dimension: size} for dimension in dimensions for size in sizes(*more)]
        if "rows" in dimensions and len(dimensions) == 2:
            cases.append({"rows": 2055, "width": 127})
        for case in cases:
            arguments = build_arguments(**case)
            if not _fits(arguments, MOST, MOST_OF_A_LAYER):
                arguments = build_arguments(**{**dict.fromkeys(dimensions, 1), **case})
                if not _fits(arguments, MOST_ALONE, MOST_ALONE):
                    continue
            yield LoopCall(function, arguments)


def is_shape(argument: Any) -> bool:
    """Return whether an argument of a call is the shape of an array: a list of whole numbers."""
    return isinstance(argument, list) and bool(argument) and all(isinstance(size, int) for size in argument)


def _fits(arguments: list, max_numbers: int, max_numbers_of_layer: int) -> bool:
    """Return whether the arguments of a function are within the maximum sizes."""
    numbers = max(math.prod(shape) for shape in arguments if is_shape(shape))
    return numbers <= max_numbers and all(math.prod(shape) <= max_numbers_of_layer for shape in _inside(arguments))


def _inside(arguments: list) -> Iterator[list[int]]:
    """Yield the shapes in nested lists of shapes."""
    for of in arguments:
        if isinstance(of, list) and not is_shape(of):
            yield from filter(is_shape, of)
            yield from _inside(of)


class Memory:
    """Allocate the outputs of loops between guard cells; all bits are 1 before a thread has run."""

    def __init__(self) -> None:
        self._plain = paddle.empty
        self.held: list[tuple[paddle.Tensor, np.ndarray]] = []

    def empty(self, shape, dtype="float32") -> paddle.Tensor:
        count = math.prod(shape)
        buffer = self._plain([count + 2 * GUARD], dtype)
        size = buffer.element_size()
        content = (ctypes.c_uint8 * (size * (count + 2 * GUARD))).from_address(buffer.data_ptr())
        self.held.append((buffer, np.frombuffer(content, f"u{size}")))
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return paddle.as_strided(buffer, list(shape), strides, offset=GUARD * size)

    def empty_like(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.empty(x.shape, x.dtype)


def _unedited_code(loop: str) -> bytes:
    return loop_code._read_code(loop) or compile_loop(loop, loop_code.find_loop_file(loop).read_text())


class OneAfterAnother:
    """Threads that share a loop's work, run one after another.

    Args:
        code: returns the object file of a loop.

    Attributes:
        threads: number of threads.
    """

    def __init__(self, code: Callable[[str], bytes] | None = None) -> None:
        self.threads, self._thread, self._team = 1, 0, 1
        self._code = code or _unedited_code
        self._engines: list = []
        self._memory = Memory()
        number = ctypes.CFUNCTYPE(ctypes.c_int)
        self._asked = {
            "omp_get_thread_num": number(lambda: self._thread),
            "omp_get_num_threads": number(lambda: self._team),
        }
        self.address = functools.cache(self._address)

    def _address(self, loop: str) -> int:
        loop_code._engine()
        try:
            for name, callback in self._asked.items():
                llvm.add_symbol(loop_code.THREADS[name], ctypes.cast(callback, ctypes.c_void_p).value)
            engine, address = load_code(loop, self._code(loop))
        finally:
            for name, ours in loop_code.THREADS.items():
                llvm.add_symbol(ours, ctypes.cast(getattr(loop_code._openmp, name), ctypes.c_void_p).value)
        self._engines.append(engine)
        return address

    def parallel(self, address: int, packed_arguments: object, is_single: int, flags: int) -> None:
        """Replace :data:`models.operations.loop_code._parallel`, and check that exactly one thread writes each cell."""
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        contents = [content for _, content in self._memory.held]
        all_ones = [np.iinfo(content.dtype).max for content in contents]
        results = [np.full_like(content, bits) for content, bits in zip(contents, all_ones, strict=True)]
        write_counts = [np.zeros(len(content), np.uint8) for content in contents]
        self._team = is_single or self.threads
        for thread in range(self._team):
            self._thread = thread
            for content, bits in zip(contents, all_ones, strict=True):
                content[:] = bits
            run(ctypes.addressof(packed_arguments))
            for content, bits, result, count in zip(contents, all_ones, results, write_counts, strict=True):
                is_written = content != bits
                np.copyto(result, content, where=is_written)
                count += is_written
        for content, result, count in zip(contents, results, write_counts, strict=True):
            assert not count[:GUARD].any() and not count[-GUARD:].any(), "a thread has written beside the output"
            assert (count[GUARD:-GUARD] == 1).all(), "a number was computed by no thread, or by several"
            content[:] = result

    def outputs(self, monkeypatch, compute: Callable[[], object]) -> object:
        """Return the result of a computation in guarded memory, whose loops all run this way, even on few numbers."""
        self._memory.held.clear()
        with monkeypatch.context() as patch:
            patch.setattr(loop_code, "_address", self.address)
            patch.setattr(loop_code, "_parallel", self.parallel)
            patch.setattr(loop_code, "MIN_PARALLEL_WORK", 0)
            patch.setattr(paddle, "empty", self._memory.empty)
            patch.setattr(paddle, "empty_like", self._memory.empty_like)
            return compute()


@contextlib.contextmanager
def use_openmp_threads(count: int) -> Iterator[None]:
    """Run loops on so many threads of OpenMP in the ``with`` block; idle threads sleep."""
    openmp = loop_code._openmp
    original_count, original_milliseconds = openmp.omp_get_max_threads(), openmp.kmp_get_blocktime()
    openmp.omp_set_num_threads(count)
    openmp.kmp_set_blocktime(0)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(original_count)
        openmp.kmp_set_blocktime(original_milliseconds)


def describe_errors(monkeypatch, threads: OneAfterAnother, call: LoopCall, openmp_counts: Sequence[int] = ()) -> str:
    """Return a description of errors in a call's outputs for several numbers of threads, or "".

    Args:
        monkeypatch: pytest's fixture.
        threads: threads that run one after another.
        call: the call of a loop's function.
        openmp_counts: numbers of OpenMP's threads, which also compute the call.
    """
    arguments = loop_accuracy.draw_arguments(call)
    truths = CHECKS[call.function].exact(*arguments)
    compute = functools.partial(loop_errors.compute_outputs, call, arguments)
    measured_outputs = None
    for threads.threads in THREAD_COUNTS if call.function not in TOGETHER else (1,):
        try:
            outputs = threads.outputs(monkeypatch, compute)
        except AssertionError as problem:
            return f"{call} with {threads.threads} threads: {problem}"
        if message := _describe_inaccurate(call, outputs, truths, measured_outputs):
            return f"{call} with {threads.threads} threads: {message}"
        measured_outputs = outputs
    for count in openmp_counts:
        with use_openmp_threads(count):
            outputs = compute()
        if message := _describe_inaccurate(call, outputs, truths, measured_outputs):
            return f"{call} with {count} threads of OpenMP: {message}"
        measured_outputs = outputs
    return ""


def _describe_inaccurate(
    call: LoopCall, outputs: list[np.ndarray], truths: list, accurate_outputs: list[np.ndarray] | None
) -> str:
    """Return a description of an inaccurate output of a call, or "".

    Outputs with the bits of outputs that are known to be accurate are not measured again.
    """
    if accurate_outputs and all(
        output.shape == accurate.shape and output.tobytes() == accurate.tobytes()
        for output, accurate in zip(outputs, accurate_outputs, strict=True)
    ):
        return ""
    return next((message for _, message in faults([loop_accuracy.measure_error(call, outputs, truths)])), "")
