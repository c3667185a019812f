"""Search for the smallest fault that the gate catches, by a small change of each parameter of a correct port.

Such small changes move the outputs in proportion. So one run yields the smallest change that is caught: the change
divided by the largest error in units of its bound. The gate also compares the parameters themselves; this comparison is
not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from toolkit.parity.exchange.results import CandidateResult, ReferenceResult, read_results
from toolkit.parity.followup import remeasure
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.judge.bounds import compare
from toolkit.parity.judge.known_differences import pattern_of
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.mutants.change import CHANGE, weight_change_name
from toolkit.parity.pairs.prepare import prepare_job
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request.build import scratch_job, workers_of
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import check_port

#: Smallest relative change of a matrix that the gate must catch; smallest relative change of a gradient that it must
#: catch.
WEIGHT_LIMIT, GRADIENT_LIMIT = 1e-10, 1e-8
#: Bound of a gradient, relative to its RMS. A gradient with a larger bound is only rounding, such as the gradient of
#: CTRL's key bias.
ZERO_BY_CANCELLATION = 0.1
#: Roles of parameters that are matrices.
MATRICES = ("linear", "embedding")


@dataclass(frozen=True)
class Limit:
    """The smallest relative changes of a parameter and its gradient that the gate catches in float64.

    Attributes:
        name: name of the parameter.
        role: role of the parameter (:attr:`toolkit.parity.pairs.prepare.PreparedJob.roles`).
        weight: limit of the parameter's values; infinite if no change of them is caught, as for a key's bias.
        gradient: limit of the gradient's RMS; None for a frozen parameter, which has no gradient.
    """

    name: str
    role: str
    weight: float
    gradient: float | None


def find_limits(request: GateRequest, console: Console) -> list[Limit]:
    """Return the smallest caught changes of every parameter of a model or a pair, in float64.

    The reference runs as often as in a gate with an error near its bound (:mod:`toolkit.parity.followup.remeasure`).

    Args:
        request: gate on a correct port.
        console: console for progress.

    Raises:
        UserError: the port of a pair differs from the reference even without a fault.
    """
    workers = workers_of(request)
    with scratch_job() as job:
        prepared_job = prepare_job(request, job, console)
        prepared_job.put_mutants([weight_change_name(name) for name in prepared_job.roles])
        run_workers([job], console, workers)
        reference, candidate = read_results(job)
        if prepared_job.sides:
            reference = with_rounded_constants(job, reference, candidate, console, workers["reference"])
            check_port(reference, candidate)
        [repeated_runs] = remeasure.measure_again([job], console, workers["reference"])
    reference = remeasure.with_more_runs(reference, repeated_runs)
    return [
        Limit(name, role, _weight_limit(name, reference, candidate), _gradient_limit(name, reference))
        for name, role in prepared_job.roles.items()
    ]


def _weight_limit(name: str, reference: ReferenceResult, candidate: CandidateResult) -> float:
    """Return the smallest relative change of a parameter that moves some tensor beyond its bound.

    The result is infinite if even the tried change moves no tensor beyond its bound.

    Args:
        name: name of the parameter.
        reference: results of the reference.
        candidate: results of the port, with a mutant that changes this parameter.
    """
    mutant_result = candidate.mutants[weight_change_name(name)]
    verdict = judge(reference, CandidateResult(mutant_result.dtypes, mutant_result.generators, tokens=candidate.tokens))
    comparisons = [c for c in verdict.comparisons if pattern_of(c.name, reference.accept) is None]
    largest_margin = max(c.margin for c in comparisons if TensorName.parse(c.name).kind != "updated")
    return CHANGE / largest_margin if largest_margin > 1 else float("inf")


def _gradient_limit(name: str, reference: ReferenceResult) -> float | None:
    """Return the bound of a parameter's gradient in float64, relative to the gradient's RMS.

    The result is None if the reference has no such gradient, and infinite if the gradient is 0.

    Args:
        name: name of the parameter.
        reference: results of the reference.
    """
    theirs = reference.tensors.get(f"gradient:{name}")
    if theirs is None:
        return None
    if not theirs.rms:
        return float("inf")
    return compare(name, theirs, TensorStats(theirs.shape, rms=0.0, max=0.0), "float64").bound / theirs.rms


def print_limits(limits: Sequence[Limit], console: Console) -> None:
    """Print the smallest changes that the gate catches, as `toolkit parity limits` does.

    A table has a row for each role of parameters: median and worst of the smallest relative changes of values and of
    gradients. Then each parameter with a change above :data:`WEIGHT_LIMIT` or :data:`GRADIENT_LIMIT` has a line.

    Args:
        limits: limits of all parameters.
        console: console to print to.
    """
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
        role_limits = [limit for limit in limits if limit.role == role]
        columns = [
            figure
            for key in ("weight", "gradient")
            for figure in _median_and_worst([getattr(x, key) for x in role_limits])
        ]
        table.add_row(role, str(len(role_limits)), *columns)
    console.print(table)
    for limit in limits:
        text = f"{limit.name}: values {limit.weight:.1e}, gradient {_format_limit(limit.gradient)}"
        if not is_sensitive(limit):
            console.print(f"  not seen well: {text}", markup=False, highlight=False, soft_wrap=True)
        elif limit.gradient is not None and limit.gradient > ZERO_BY_CANCELLATION:
            console.print(f"  the gradient is all rounding: {text}", markup=False, highlight=False, soft_wrap=True)


def is_sensitive(limit: Limit) -> bool:
    """Return whether the gate catches the required change of a parameter's gradient, and of a matrix's values.

    A gradient that is only rounding is exempt.
    """
    catches_gradient = limit.gradient is None or not GRADIENT_LIMIT < limit.gradient <= ZERO_BY_CANCELLATION
    return catches_gradient and (limit.role not in MATRICES or limit.weight <= WEIGHT_LIMIT)


def _median_and_worst(limits: Sequence[float | None]) -> tuple[str, str]:
    """Return the median and the largest of several limits, as text; None is left out."""
    numbers = [limit for limit in limits if limit is not None]
    if not numbers:
        return _format_limit(None), _format_limit(None)
    return _format_limit(float(np.median(numbers))), _format_limit(max(numbers))


def _format_limit(limit: float | None) -> str:
    """Return a limit as text, such as `1.2e-11`; `frozen` for None."""
    return "frozen" if limit is None else f"{limit:.1e}"
