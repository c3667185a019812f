"""Noise baseline of the verdicts: the distance of the reference's other runs from R64."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping

import numpy as np

from toolkit.parity.exchange.tensor_file import are_one
from toolkit.parity.job.job import Job
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.latest import LastMeasurement
from toolkit.parity.measure.masked_scores import split_masked_scores
from toolkit.parity.measure.naming import is_gradient
from toolkit.parity.reference.points import Keep
from toolkit.parity.reference.reordered_sums import ReorderedSums
from toolkit.parity.reference.step import DTYPES, Step


def runs_of(job: Job) -> dict[str, range]:
    """Return the numbers of a job's noise runs, such as 0 to 4, by dtype."""
    return {dtype: range(count) for dtype, count in job.noise_runs.items()}


def measure_noise(
    step: Step, truth: Mapping[str, np.ndarray], records: dict[str, TensorRecord], runs: Mapping[str, range]
) -> None:
    """Add the noise of a step, and of the evaluation and training after it, to the records (:func:`measure_runs`).

    In float32 and bfloat16, all runs except run 0 keep the powers of AdamW's betas in float32. If the port uses the
    reference's own backward, the gradients of this backward are noise, too.

    Args:
        step: step of the reference.
        truth: R64's tensors by name.
        records: record of each tensor by name; the runs' noise is added to it.
        runs: numbers of the runs, by dtype.
    """

    def run_once(dtype: str, run_number: int, nudge: int, measure: Keep) -> None:
        """Run the step, its evaluation and its training once in a dtype, and pass each tensor to ``measure``."""
        with reorder_sums(dtype, run_number):
            step.run(dtype, measure, nudge=nudge)
            step.evaluate(measure, nudge)
        if step.uses_reference_backward:
            step.run(dtype, keep_gradients(measure), nudge=nudge, plain=False)
        step.train_on(measure, truth, has_float32_powers=dtype != "float64" and run_number > 0)

    measure_runs(run_once, truth, records, runs)


def keep_gradients(measure: Keep) -> Keep:
    """Return a receiver of tensors that passes only gradients on to ``measure``."""

    def keep(name: str, value: np.ndarray) -> None:
        """Pass a tensor on to ``measure`` if it is a gradient."""
        if is_gradient(name):
            measure(name, value)

    return keep


def measure_runs(
    run_once: Callable[[str, int, int, Keep], None],
    truth: Mapping[str, np.ndarray],
    records: dict[str, TensorRecord],
    runs: Mapping[str, range],
) -> None:
    """Run the reference for each number of ``runs``, and add each tensor's distance from R64 to its record.

    In float32, run 0 keeps the weights, and the other runs move them by one unit in the last place. In bfloat16, they
    move only the weights of linear layers, by a quarter of its unit (:meth:`.step.Step.load`). In float64, all runs
    move the weights by one unit and add in another order. These runs show how much errors grow in float64, even if an
    error in float32 is as large as the tensor.

    Args:
        run_once: runs the reference, given the dtype, the number of the run, the nudge of the weights and the receiver
            of each tensor.
        truth: R64's tensors by name.
        records: record of each tensor by name; the runs' noise is added to it.
        runs: numbers of the runs, by dtype.
    """

    def errors(name: str, value: np.ndarray) -> tuple[str, list[tuple[str, TensorStats]]]:
        """Return a tensor's name, and the error of each of its parts: all, and unmasked attention scores."""
        parts = split_masked_scores(name, value, truth[name], truth)
        return name, [(part, error_stats.measure_error(values, true_values)) for part, values, true_values in parts]

    measure_errors = LastMeasurement(errors, functools.partial(are_one, truth))
    for dtype, numbers in runs.items():

        def measure(name: str, value: np.ndarray, dtype: str = dtype) -> None:
            """Add the distance of a tensor from R64 to the tensor's record."""
            first_name, parts = measure_errors(name, value)
            for part, error in parts:
                records[name if part == first_name else part].add_noise(dtype, error)

        for run in numbers:
            run_once(dtype, run, run + (dtype == "float64"), measure)


def reorder_sums(dtype: str, run_number: int) -> contextlib.AbstractContextManager:
    """Return a context manager that reorders the sums of a float64 run, and changes nothing in other dtypes.

    Args:
        dtype: dtype of the run.
        run_number: number of the run, which is the seed of the order.
    """
    return ReorderedSums(run_number) if dtype == "float64" else contextlib.nullcontext()


def measure_own_backward(step: Step) -> dict[str, dict[str, float]]:
    """Return the distance of the reference's own (reversible) backward from plain autograd, by dtype and gradient.

    The distance is |difference| / |gradient| in Frobenius norms. It is only reported, and not judged.
    """
    errors: dict[str, dict[str, float]] = {}
    for dtype in DTYPES:
        plain: dict[str, np.ndarray] = {}
        step.run(dtype, plain.__setitem__, has_hooks=False)
        own: dict[str, np.ndarray] = {}
        step.run(dtype, own.__setitem__, plain=False, has_hooks=False)
        errors[dtype] = {
            name: float(np.linalg.norm(own[name] - plain[name])) / max(float(np.linalg.norm(plain[name])), 1e-300)
            for name in plain
            if is_gradient(name) and name in own
        }
    return errors
