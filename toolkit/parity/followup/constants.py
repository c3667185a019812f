"""Does a pair's port drift only because Paddle's kernels hold constants in float32?

If so, the reference with these constants rounded moves the same tensors by as much
(:mod:`toolkit.parity.reference.rounded`): that is then noise of float64, and the report says which constants they are.
A constant is none of them if some tensor agrees that its rounding would have moved.
Nothing of this is measured unless a port drifts, and never of the families here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.followup.remeasure import with_more_runs
from toolkit.parity.job import files
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.results import CandidateResult, Note, ReferenceResult, RoundedConstants
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import TensorRecord

TASK = "constants"
#: Constants that a note names.
NAMED = 8


def with_rounded_constants(
    job: Path, reference: ReferenceResult, candidate: CandidateResult, console: Console, python: str
) -> ReferenceResult:
    """Return the reference's result of a job that both workers have run. If it explains any drift of a pair's port, the
    rounding of the constants is noise in it."""
    content = files.read_job(job)
    before = judge(reference, candidate)
    if content.pair is None or all(one.verdict != "semantics" for one in before.findings):
        return reference
    measured = {one.name: (one.error, one.bound) for one in before.comparisons if one.dtype == "float64"}
    files.write_json(job / "reference" / files.MEASURED, measured)
    try:
        run_workers([job], console, {"reference": python}, task=TASK)
    except Inconclusive as problem:
        console.print(f"parity gate: {problem}", markup=False)
        return reference
    found = files.read(files.result_path(job, "reference", TASK), RoundedConstants)
    none = TensorRecord(shape=[])
    rounded = with_more_runs(reference, {name: found.tensors.get(name, none) for name in reference.tensors})
    failed = {one.name for one in judge(rounded, candidate).comparisons if one.dtype == "float64" and not one.passed}
    explained = [c for c in before.comparisons if c.dtype == "float64" and not c.passed and c.name not in failed]
    if not explained:
        return reference
    files.write_json(job / "job.json", replace(content, rounded=list(found.constants)))
    named = ", ".join([*found.constants.values()][:NAMED])
    more = f" and {len(found.constants) - NAMED} more" if len(found.constants) > NAMED else ""
    worst = max(one.relative for one in explained)
    data = {"count": len(explained), "worst": worst, "constants": named + more}
    return replace(rounded, notes=[*rounded.notes, Note("constants-rounded", data)])
