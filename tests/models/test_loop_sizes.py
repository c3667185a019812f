"""Test each compiled loop at sizes around each constant of its code, for any number of threads, against float64."""

from __future__ import annotations

import functools
import math
from types import ModuleType

import numpy as np
import paddle
import pytest
from loop_cases import (
    THREAD_COUNTS,
    TOGETHER,
    OneAfterAnother,
    calls,
    describe_errors,
    is_shape,
    sizes,
    use_openmp_threads,
)
from loop_faults import FAULTS, Fault
from soak import some

from models.operations import compiled, kernels, loop_code
from toolkit.parity.candidate import loop_errors
from toolkit.parity.measure.loop_accuracy import CHECKS
from toolkit.parity.mutants.edits import edit_source
from toolkit.parity.mutants.loops import compile_loop

pytestmark = pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")

#: Thresholds of a mask in 2^-16: none, one, some, half, all but one, all.
THRESHOLDS = (0, 1, 6554, 2**15, 2**16 - 1, 2**16)


@pytest.mark.parametrize("function", CHECKS)
def test_a_loop_is_correct_at_every_size_with_any_number_of_threads(function, monkeypatch):
    """Threads run one after another. Those of OpenMP run at sizes around the smallest for which they are woken."""
    is_parallel = []
    original = loop_code._parallel
    monkeypatch.setattr(
        loop_code, "_parallel", lambda *arguments: (is_parallel.append(not arguments[2]), original(*arguments))
    )
    threads = OneAfterAnother()
    for call in calls(function):
        numbers = max(math.prod(shape) for shape in call.given if is_shape(shape))
        is_near_minimum = loop_code.MIN_PARALLEL_WORK // 8 <= numbers < 4 * loop_code.MIN_PARALLEL_WORK
        openmp_counts = THREAD_COUNTS if is_near_minimum or function in TOGETHER else ()
        assert describe_errors(monkeypatch, threads, call, openmp_counts) == ""
    assert {True, False} == set(is_parallel)


def test_a_mask_is_correct_at_every_size_with_any_number_of_threads(monkeypatch):
    assert find_wrong_mask(monkeypatch, OneAfterAnother()) == ""


def find_wrong_mask(monkeypatch, threads: OneAfterAnother, module: ModuleType = compiled) -> str:
    """Return the error of random masks, which must equal SplitMix64 for their seed.

    As :func:`loop_cases.describe_errors`.
    """
    for number, cells in enumerate(sizes()):
        # a size below a word, which each of several threads would draw
        for threads.threads in THREAD_COUNTS if cells >= 4 else (1,):
            threshold = THRESHOLDS[number % len(THRESHOLDS)]
            expected_cells = make_expected_mask(number, cells, threshold)
            paddle.seed(number)
            try:
                output = threads.outputs(monkeypatch, functools.partial(module.random_mask, threshold, [cells]))
            except AssertionError as error:
                return str(error)
            if not np.array_equal(output.numpy(), expected_cells):
                return f"{cells} cells with {threads.threads} threads"
    return ""


def make_expected_mask(seed: int, cells: int, threshold: int) -> np.ndarray:
    """Return the cells of a mask, four from each number of SplitMix64 (Steele, Lea, Flood 2014, figure 17)."""
    paddle.seed(seed)
    state = paddle.randint(-(2**31), 2**31 - 1, [2], "int32").numpy().view(np.uint64)[0]
    with np.errstate(over="ignore"):
        z = state + np.arange(1, cells // 4 + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return z.view(np.uint16)[:cells] >= threshold


@pytest.mark.slow
@pytest.mark.parametrize("fault", some([*FAULTS], 5))
def test_a_loop_that_is_wrong_at_some_size_is_found(fault, monkeypatch):
    assert find_fault(FAULTS[fault], monkeypatch)


def find_fault(fault: Fault, monkeypatch) -> str:
    """Return the error that the tests above find with an active fault."""
    edited_source = edit_source(fault.edit.file.read_text(), [fault.edit])
    module, code = compiled, None
    if fault.file.endswith("loops"):
        code = functools.cache(lambda loop: compile_loop(loop, edited_source))
    else:
        module = ModuleType("models.operations.compiled")
        exec(compile(edited_source, "compiled.py", "exec"), vars(module))
        monkeypatch.setattr(loop_errors, "compiled", module)
    threads = OneAfterAnother(code)
    if fault.function == "random_mask":
        return find_wrong_mask(monkeypatch, threads, module)
    fault_calls = calls(fault.function, edited_source)
    return next(filter(None, (describe_errors(monkeypatch, threads, call) for call in fault_calls)), "")


@pytest.mark.parametrize("count", THREAD_COUNTS)
def test_parallel_draws_equal_the_mask_of_one_thread(count):
    for cells in (loop_code.MIN_PARALLEL_WORK + beside for beside in (-1, 0, 1, 3 * loop_code.MIN_PARALLEL_WORK + 2)):
        expected_cells = make_expected_mask(cells, cells, 6554)
        paddle.seed(cells)
        with use_openmp_threads(count):
            np.testing.assert_array_equal(compiled.random_mask(6554, [cells]).numpy(), expected_cells)
