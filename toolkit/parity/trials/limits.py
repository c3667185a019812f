"""How small a fault the gate sees: each parameter of a right port is changed a little, one after another.

The outputs change in proportion to so small a change. So one run tells the smallest change that is caught: the change
over the largest error in units of its bound. The gate also catches directly that a parameter is not the one given; that
is left aside here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from toolkit.parity.followup import remeasure
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.job.build import scratch_job, workers_of
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import CandidateResult, ReferenceResult, read_results
from toolkit.parity.judge.accepted import pattern_of
from toolkit.parity.judge.bounds import compare
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.mutants.change import CHANGE, weight_change_name
from toolkit.parity.pairs.prepare import prepare
from toolkit.parity.trials.mutation import check_right

#: Relative changes that must be caught: in a matrix, in a gradient.
WEIGHT_LIMIT, GRADIENT_LIMIT = 1e-10, 1e-8
#: A gradient whose bound exceeds this part of it is nothing but rounding, as that of CTRL's key bias.
ZERO_BY_CANCELLATION = 0.1
#: Roles of parameters that are matrices.
MATRICES = ("linear", "embedding")


@dataclass(frozen=True)
class Limit:
    """The smallest relative change of one tensor that is caught in float64.

    Attributes:
        name: of the parameter.
        role: as :class:`toolkit.parity.pairs.prepare.PreparedJob` names it.
        weight: of the parameter's values; infinite where no change of it changes anything, such as a key's bias.
        gradient: of its gradient, in the RMS; None if it has none, since it is frozen.
    """

    name: str
    role: str
    weight: float
    gradient: float | None


def find_limits(request: GateRequest, console: Console) -> list[Limit]:
    """Find the limit of every parameter of a model or of a pair, in float64 alone, with as many runs of the reference
    as measure what is near its bound (:mod:`toolkit.parity.followup.remeasure`).

    Raises:
        UserError: a pair's port is wrong to begin with, so that faults put into it tell nothing.
    """
    workers = workers_of(request)
    with scratch_job() as job:
        prepared = prepare(request, job, console)
        prepared.put_mutants([weight_change_name(name) for name in prepared.roles])
        run_workers([job], console, workers)
        reference, candidate = read_results(job)
        if prepared.sides:
            reference = with_rounded_constants(job, reference, candidate, console, workers["reference"])
            check_right(reference, candidate)
        [more] = remeasure.measure_again([job], console, workers["reference"])
    reference = remeasure.with_more_runs(reference, more)
    return [
        Limit(name, role, _of_weight(name, reference, candidate), _of_gradient(name, reference))
        for name, role in prepared.roles.items()
    ]


def _of_weight(name: str, reference: ReferenceResult, candidate: CandidateResult) -> float:
    measured = candidate.mutants[weight_change_name(name)]
    verdict = judge(reference, CandidateResult(measured.dtypes, measured.generators, tokens=candidate.tokens))
    told = [c for c in verdict.comparisons if pattern_of(c.name, reference.accept) is None]
    largest = max(c.margin for c in told if TensorName.parse(c.name).kind != "updated")
    return CHANGE / largest if largest > 1 else float("inf")


def _of_gradient(name: str, reference: ReferenceResult) -> float | None:
    """Return the bound relative to the size of the gradient; None if the reference has none."""
    theirs = reference.tensors.get(f"gradient:{name}")
    if theirs is None:
        return None
    if not theirs.rms:
        return float("inf")
    return compare(name, theirs, TensorStats(theirs.shape, rms=0.0, max=0.0), "float64").bound / theirs.rms


def print_limits(limits: Sequence[Limit], console: Console) -> None:
    """Print a row for each role, then the tensors whose limit is above what must be caught."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "smallest change caught in float64",
        "tensors",
        "values: median",
        "worst",
        "gradient: median",
        "worst",
    ):
        table.add_column(title, justify="left" if title.startswith("smallest") else "right")
    for role in dict.fromkeys(limit.role for limit in limits):
        some = [limit for limit in limits if limit.role == role]
        columns = [
            figure for key in ("weight", "gradient") for figure in _median_and_worst([getattr(x, key) for x in some])
        ]
        table.add_row(role, str(len(some)), *columns)
    console.print(table)
    for limit in limits:
        text = f"{limit.name}: values {limit.weight:.1e}, gradient {_figure(limit.gradient)}"
        if not is_seen(limit):
            console.print(f"  not seen well: {text}", markup=False, highlight=False, soft_wrap=True)
        elif limit.gradient is not None and limit.gradient > ZERO_BY_CANCELLATION:
            console.print(f"  the gradient is all rounding: {text}", markup=False, highlight=False, soft_wrap=True)


def is_seen(limit: Limit) -> bool:
    """Whether what must be caught is caught: in every matrix, and in every gradient that is not all rounding."""
    gradient = limit.gradient is None or not GRADIENT_LIMIT < limit.gradient <= ZERO_BY_CANCELLATION
    return gradient and (limit.role not in MATRICES or limit.weight <= WEIGHT_LIMIT)


def _median_and_worst(values: Sequence[float | None]) -> tuple[str, str]:
    numbers = [value for value in values if value is not None]
    return (_figure(float(np.median(numbers))), _figure(max(numbers))) if numbers else (_figure(None), _figure(None))


def _figure(value: float | None) -> str:
    """Return a limit as text."""
    return "frozen" if value is None else f"{value:.1e}"
