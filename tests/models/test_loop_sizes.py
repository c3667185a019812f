"""Each compiled loop at sizes beside each constant of its code, whoever shares its work, against NumPy's float64."""

from __future__ import annotations

import functools
import math
from types import ModuleType

import numpy as np
import paddle
import pytest
from loop_cases import TOGETHER, OneAfterAnother, calls, describe_errors, is_shape, sizes
from loop_faults import FAULTS, Fault
from soak import some

from models.operations import compiled, kernels, loop_code
from toolkit.parity.candidate import loop_errors
from toolkit.parity.judge.loops import faults
from toolkit.parity.measure import loop_accuracy
from toolkit.parity.measure.loop_accuracy import CHECKS
from toolkit.parity.mutants.edits import edit_source
from toolkit.parity.mutants.loops import compile_loop

pytestmark = pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")

THREADS = (1, 2, 3, 5)
#: Rates of a mask in 2^-16: of all, of none, and of one number more or less.
THRESHOLDS = (0, 1, 6554, 2**15, 2**16 - 1, 2**16)


@pytest.mark.parametrize("function", CHECKS)
def test_a_loop_is_right_at_every_size_and_with_any_number_of_threads(function, monkeypatch):
    threads = OneAfterAnother()
    with threads.in_force(monkeypatch):
        for call in calls(function):
            assert describe_errors(monkeypatch, threads, call) == ""


def test_a_mask_is_right_at_every_size_and_with_any_number_of_threads(monkeypatch):
    threads = OneAfterAnother()
    with threads.in_force(monkeypatch):
        assert wrong_mask(monkeypatch, threads) == ""


def wrong_mask(monkeypatch, threads: OneAfterAnother, module: ModuleType = compiled) -> str:
    """As :func:`loop_cases.wrong_with`, of random masks: which are those that SplitMix64 makes of their seed."""
    for number, cells in enumerate(sizes()):
        for threads.threads in THREADS if cells >= 4 else (1,):  # less than a word, which each of several would draw
            threshold = THRESHOLDS[number % len(THRESHOLDS)]
            expected = mask(number, cells, threshold)
            paddle.seed(number)
            try:
                found = threads.outputs(monkeypatch, functools.partial(module.random_mask, threshold, [cells]))
            except AssertionError as problem:
                return str(problem)
            if not np.array_equal(found.numpy(), expected):
                return f"{cells} cells with {threads.threads} threads"
    return ""


def mask(seed: int, cells: int, threshold: int) -> np.ndarray:
    """Cells of a mask, four from each number of SplitMix64 (Steele, Lea, Flood 2014, figure 17)."""
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
def test_a_loop_that_is_wrong_at_some_size_is_seen(fault, monkeypatch):
    assert wrong_by(FAULTS[fault], monkeypatch)


def wrong_by(fault: Fault, monkeypatch) -> str:
    """What the tests above find with a fault in force."""
    edited = edit_source(fault.edit.file.read_text(), [fault.edit])
    module, code = compiled, None
    if fault.file.endswith("loops"):
        code = functools.cache(lambda loop: compile_loop(loop, edited))
    else:
        module = ModuleType("models.operations.compiled")
        exec(compile(edited, "compiled.py", "exec"), vars(module))
        monkeypatch.setattr(loop_errors, "compiled", module)
    threads = OneAfterAnother(code)
    with threads.in_force(monkeypatch):
        if fault.function == "random_mask":
            return wrong_mask(monkeypatch, threads, module)
        tried = calls(fault.function, edited)
        return next(filter(None, (describe_errors(monkeypatch, threads, call) for call in tried)), "")


@pytest.fixture(
    params=[threads if threads % 2 else pytest.param(threads, marks=pytest.mark.slow) for threads in THREADS]
)
def team(request):
    """OpenMP's own threads, so many of them."""
    before = loop_code._openmp.omp_get_max_threads()
    loop_code._openmp.omp_set_num_threads(request.param)
    yield request.param
    loop_code._openmp.omp_set_num_threads(before)


@pytest.mark.parametrize("function", CHECKS)
def test_a_loop_is_right_with_openmps_threads_and_below_what_they_are_woken_for(function, team, monkeypatch):
    woken = []
    plain = loop_code._parallel
    monkeypatch.setattr(loop_code, "_parallel", lambda *given: (woken.append(not given[2]), plain(*given)))
    for call in calls(function):
        numbers = max(math.prod(shape) for shape in call.given if is_shape(shape))
        if numbers in range(loop_code.MIN_PARALLEL_WORK // 8, 4 * loop_code.MIN_PARALLEL_WORK) or function in TOGETHER:
            assert list(faults([loop_accuracy.measure_error(call, loop_errors.compute_outputs(call))])) == []
    assert {True, False} == set(woken)


def test_threads_that_draw_at_once_make_the_mask_that_one_makes(team):
    for cells in (loop_code.MIN_PARALLEL_WORK + beside for beside in (-1, 0, 1, 3 * loop_code.MIN_PARALLEL_WORK + 2)):
        expected = mask(cells, cells, 6554)
        paddle.seed(cells)
        np.testing.assert_array_equal(compiled.random_mask(6554, [cells]).numpy(), expected)
