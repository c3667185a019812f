"""Further runs of the reference if a tensor is a little beyond its bound.

Such an error may be luck of the first few runs. If a single number decides, such as a row of saturated attention, the
error of a correct port is a draw from the same distribution as the reference's errors. If this distribution is normal,
three times the largest of five draws is exceeded once in 200 times, and three times the largest of 25 draws once in
400,000 times. So before a port fails for a tensor near its bound, the reference is run more often. A fault of the port
still shows: the median of the largest of 25 draws is only 1.4 times the median of the largest of five.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Note, ReferenceResult
from toolkit.parity.judge.bounds import Comparison
from toolkit.parity.judge.findings import OF_RECOMPUTING, OF_TENSORS, Verdict
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import name_in_step
from toolkit.parity.processes.processes import run_workers

#: Largest error, in units of its bound, that may be luck. Faulty ports exceed it, most by a factor of 10^6.
NEAR_BOUND = 10.0
#: Number of further runs of the reference by dtype, in addition to :data:`toolkit.parity.request.build.NOISE_RUNS`.
MORE_RUNS = {"float32": 20, "float64": 8}
#: The same for a large model, whose runs take minutes, in addition to
#: :data:`toolkit.parity.request.build.FEW_NOISE_RUNS`.
FEW_MORE_RUNS = {"float32": 6, "float64": 2}
#: The same in bfloat16, if the gate judges bfloat16.
MORE_LOWERED_RUNS, FEW_MORE_LOWERED_RUNS = {"bfloat16": 20}, {"bfloat16": 6}


def is_near_bound(verdict: Verdict) -> bool:
    """Return whether all findings of a verdict are tensors a little beyond their bounds.

    The largest error may be :data:`NEAR_BOUND` times its bound.
    """
    beyond = _failed_comparisons(verdict)
    return bool(beyond) and all(one is not None and one.margin <= NEAR_BOUND for one in beyond)


def _failed_comparisons(verdict: Verdict) -> list[Comparison | None]:
    """Return the comparison of each finding, or None for a finding that is not a tensor's error.

    An output that is set aside if nothing else differs (:mod:`.interfaces`) is left out.
    """
    failed_comparisons = {
        kind: {(one.name, one.dtype): one for one in verdict.compared_by(kind) if not one.passed}
        for kind in (*OF_TENSORS, *OF_RECOMPUTING)
    }
    findings = [finding for finding in verdict.findings if finding.name not in verdict.replaceable]
    return [failed_comparisons.get(finding.verdict, {}).get((finding.name, finding.dtype)) for finding in findings]


def note_unmeasured(verdict: Verdict) -> None:
    """Add a note if a verdict is near its bound and the reference cannot run again."""
    if is_near_bound(verdict):
        verdict.note("not-remeasured", factor=NEAR_BOUND)


def measure_again(jobs: Sequence[Path], console: Console, python: str) -> list[dict[str, TensorRecord]]:
    """Return the noise of each job's reference in further runs, by tensor.

    Args:
        jobs: folders of jobs that both workers have run.
        console: console for progress.
        python: interpreter of the reference.

    Raises:
        Inconclusive: the reference failed.
    """
    for job in jobs:
        files.write_json(job / "reference" / "remeasure-runs.json", num_more_runs(job))
    run_workers(jobs, console, {"reference": python}, task="remeasure")
    return [files.read(files.result_path(job, "reference", "remeasure"), dict[str, TensorRecord]) for job in jobs]


def num_more_runs(job: Path) -> dict[str, int]:
    """Return the number of further runs of the reference for a job folder, by dtype."""
    content = files.read_job(job)
    runs, bfloat16_runs = (FEW_MORE_RUNS, FEW_MORE_LOWERED_RUNS) if content.brief else (MORE_RUNS, MORE_LOWERED_RUNS)
    return {**runs, **bfloat16_runs} if "bfloat16" in content.dtypes else runs


def with_more_runs(reference: ReferenceResult, more: Mapping[str, TensorRecord]) -> ReferenceResult:
    """Return the reference's result with the noise of its first runs and of further runs.

    Args:
        reference: result of the first runs.
        more: noise of the further runs, by tensor (:func:`measure_again`).
    """
    tensors = {
        name: replace(
            record,
            noise=_join_runs(record.noise, more[name].noise),
            noise_max=_join_runs(record.noise_max, more[name].noise_max),
        )
        for name, record in reference.tensors.items()
    }
    return replace(reference, tensors=tensors)


def _join_runs(first_runs: Mapping[str, list[float | None]], further_runs: Mapping[str, list[float | None]]) -> dict:
    """Return the errors of first and further runs in one list, by dtype."""
    return {dtype: [*first_runs[dtype], *further_runs.get(dtype, [])] for dtype in first_runs}


def remeasure_near_bounds(
    jobs: Sequence[Path],
    references_and_verdicts: Sequence[tuple[ReferenceResult, Verdict]],
    console: Console,
    python: str,
) -> list[ReferenceResult]:
    """Return the reference's result of each job, with further runs if its verdict is near a bound.

    Args:
        jobs: folders of jobs that both workers have run.
        references_and_verdicts: the reference's result and the verdict of each job.
        console: console for progress and problems.
        python: interpreter of the reference.
    """
    near = [job for job, (_, verdict) in zip(jobs, references_and_verdicts, strict=True) if is_near_bound(verdict)]
    if not near:
        return [reference for reference, _ in references_and_verdicts]
    total = max(sum(num_more_runs(job).values()) for job in near)
    console.print(f"parity gate: near the bounds; {total} more runs of the reference", highlight=False, soft_wrap=True)
    try:
        more = dict(zip(near, measure_again(near, console, python), strict=True))
    except Inconclusive as error:
        console.print(f"parity gate: {error}", markup=False)
        return [reference for reference, _ in references_and_verdicts]
    return [
        _with_remeasuring_note(reference, verdict, more[job]) if job in more else reference
        for job, (reference, verdict) in zip(jobs, references_and_verdicts, strict=True)
    ]


def _with_remeasuring_note(
    reference: ReferenceResult, verdict: Verdict, more: Mapping[str, TensorRecord]
) -> ReferenceResult:
    """Return the reference's result with further runs, and with a note on the verdict that was near its bound.

    Args:
        reference: result of the first runs.
        verdict: verdict by the first runs.
        more: noise of the further runs, by tensor.
    """
    result = with_more_runs(reference, more)
    worst = max(filter(None, _failed_comparisons(verdict)), key=lambda one: one.margin)
    few, all_runs = (_describe_run_counts(one.tensors[name_in_step(worst.name)]) for one in (reference, result))
    data = {"all_runs": all_runs, "few_runs": few, "name": worst.name, "margin": worst.margin, "dtype": worst.dtype}
    return replace(result, notes=[*reference.notes, Note("remeasured", data)])


def _describe_run_counts(record: TensorRecord) -> str:
    """Return the number of runs in a tensor's record as text, such as ``5 float32 and 2 float64``."""
    counts = [
        f"{len(record.noise[dtype])} {dtype}" for dtype in (*MORE_RUNS, *MORE_LOWERED_RUNS) if dtype in record.noise
    ]
    return " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))
