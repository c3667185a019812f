"""Check whether a pair's port drifts only because Paddle's kernels hold constants in float32.

In this case rounding the same constants in the reference moves the same tensors by as much
(:mod:`toolkit.parity.reference.rounded_constants`). The move then counts as noise of float64, and the report names the
constants. A constant is ruled out if its rounding would have moved a tensor that agrees. This is measured only if a
port drifts, and never for the families of this toolkit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import CandidateResult, Note, ReferenceResult, RoundedConstants
from toolkit.parity.followup.remeasure import with_more_runs
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.processes.processes import run_workers

#: Name of the reference's task that measures the effect of rounded constants.
TASK = "constants"
#: Largest number of constants that a note names.
MAX_NAMED = 8


def with_rounded_constants(
    job: Path, reference: ReferenceResult, candidate: CandidateResult, console: Console, python: str
) -> ReferenceResult:
    """Return the reference's result with the rounding of constants as noise, if this explains a pair's drift.

    Otherwise the result is returned unchanged.

    Args:
        job: folder of a job that both workers have run.
        reference: the reference's measurements.
        candidate: the port's measurements.
        console: console for progress and problems.
        python: interpreter of the reference.
    """
    content = files.read_job(job)
    first_verdict = judge(reference, candidate)
    if content.pair is None or all(one.verdict != "semantics" for one in first_verdict.findings):
        return reference
    measurements = {one.name: (one.error, one.bound) for one in first_verdict.comparisons if one.dtype == "float64"}
    files.write_json(job / "reference" / files.MEASURED_CONSTANTS, measurements)
    try:
        run_workers([job], console, {"reference": python}, task=TASK)
    except Inconclusive as error:
        console.print(f"parity gate: {error}", markup=False)
        return reference
    constants_result = files.read(files.result_path(job, "reference", TASK), RoundedConstants)
    no_record = TensorRecord(shape=[])
    rounded_reference = with_more_runs(
        reference, {name: constants_result.tensors.get(name, no_record) for name in reference.tensors}
    )
    failed_names = {
        one.name for one in judge(rounded_reference, candidate).comparisons if one.dtype == "float64" and not one.passed
    }
    explained_comparisons = [
        c for c in first_verdict.comparisons if c.dtype == "float64" and not c.passed and c.name not in failed_names
    ]
    if not explained_comparisons:
        return reference
    files.write_json(job / "job.json", replace(content, rounded=list(constants_result.constants)))
    names_text = ", ".join([*constants_result.constants.values()][:MAX_NAMED])
    more = (
        f" and {len(constants_result.constants) - MAX_NAMED} more"
        if len(constants_result.constants) > MAX_NAMED
        else ""
    )
    worst = max(one.relative for one in explained_comparisons)
    data = {"count": len(explained_comparisons), "worst": worst, "constants": names_text + more}
    return replace(rounded_reference, notes=[*rounded_reference.notes, Note("constants-rounded", data)])
