"""Distance of the reference's runs from R64: the noise baseline of the verdicts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping

import numpy as np

from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import are_one
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.latest import LastMeasurement
from toolkit.parity.measure.masked_scores import split_masked_scores
from toolkit.parity.measure.naming import is_gradient
from toolkit.parity.reference.points import Keep
from toolkit.parity.reference.reordered import SumsReordered
from toolkit.parity.reference.step import DTYPES, Step


def runs_of(job: Job) -> dict[str, range]:
    """The numbers of a job's runs, by dtype."""
    return {dtype: range(count) for dtype, count in job.noise_runs.items()}


def measure_noise(
    step: Step, truth: Mapping[str, np.ndarray], records: dict[str, TensorRecord], runs: Mapping[str, range]
) -> None:
    """As :func:`in_runs`, for a step and the evaluation and training after it. In float32 and bfloat16, all but
    run 0 correct the bias of Adam's moments in float32. If the port goes back through its layers as the reference does,
    the gradients of the reference's own backward are noise, too."""

    def once(dtype: str, run: int, nudge: int, measure: Keep) -> None:
        with sums_in_another_order(dtype, run):
            step.run(dtype, measure, nudge=nudge)
            step.evaluate(measure, nudge)
        if step.goes_back_as_the_reference:
            step.run(dtype, gradients_of(measure), nudge=nudge, plain=False)
        step.train_on(measure, truth, rounded=dtype != "float64" and run > 0)

    in_runs(once, truth, records, runs)


def gradients_of(measure: Keep) -> Keep:
    """Hands on gradients alone."""

    def keep(name: str, value: np.ndarray) -> None:
        if is_gradient(name):
            measure(name, value)

    return keep


def in_runs(
    once: Callable[[str, int, int, Keep], None],
    truth: Mapping[str, np.ndarray],
    records: dict[str, TensorRecord],
    runs: Mapping[str, range],
) -> None:
    """Run the reference once for each number of ``runs`` and note each tensor's distance from R64 in its record.

    In float32 run 0 keeps the weights, the others move them by one unit in the last place of float32; likewise in
    bfloat16, for linear layers alone and by a quarter of its unit (:meth:`.step.Step.load`). In float64 all runs move
    them by one unit of float64 and add up in another order: a float32 error that has grown as large as the tensor no
    longer tells how much float64's grows; these runs do.

    Args:
        once: called with the dtype, the run's number, the nudge of the weights (:meth:`Step.load`) and the receiver of
            every tensor.
    """

    def errors(name: str, value: np.ndarray) -> tuple[str, list[tuple[str, TensorStats]]]:
        parts = split_masked_scores(name, value, truth[name], truth)
        return name, [(part, error_stats.measure_error(own, true)) for part, own, true in parts]

    found = LastMeasurement(errors, functools.partial(are_one, truth))
    for dtype, numbers in runs.items():

        def measure(name: str, value: np.ndarray, dtype: str = dtype) -> None:
            first, parts = found(name, value)
            for part, error in parts:
                records[name if part == first else part].add_noise(dtype, error)

        for run in numbers:
            once(dtype, run, run + (dtype == "float64"), measure)


def sums_in_another_order(dtype: str, run: int) -> contextlib.AbstractContextManager:
    """For float64, :class:`SumsReordered` seeded by the run."""
    return SumsReordered(run) if dtype == "float64" else contextlib.nullcontext()


def own_backward_error(step: Step) -> dict[str, dict[str, float]]:
    """How far the reference's own (reversible) backward lies from plain autograd, per gradient: |difference| /
    |gradient| (Frobenius norms), in both dtypes. Nothing is judged by it; the report shows it beside the port's."""
    errors: dict[str, dict[str, float]] = {}
    for dtype in DTYPES:
        plain: dict[str, np.ndarray] = {}
        step.run(dtype, plain.__setitem__, watched=False)
        own: dict[str, np.ndarray] = {}
        step.run(dtype, own.__setitem__, plain=False, watched=False)
        errors[dtype] = {
            name: float(np.linalg.norm(own[name] - plain[name])) / max(float(np.linalg.norm(plain[name])), 1e-300)
            for name in plain
            if is_gradient(name) and name in own
        }
    return errors
