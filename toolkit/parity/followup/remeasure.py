"""A tensor a little beyond its bound: the port's fault, or the luck of the few runs by which rounding is measured?

Where one number decides, such as a row of saturated attention, the error of a right port is a draw from the same
distribution as those of the reference. If that is normal, three times the largest of five draws is exceeded once in 200
times, three times the largest of 25 once in 400,000. So before a port is stopped for a tensor that is near its bound,
the reference is run more often. A fault of the port stays: the largest of 25 draws is 1.4 times that of five, by the
median.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.job import files
from toolkit.parity.job.processes import run_workers
from toolkit.parity.judge.verdict import OF_TENSORS, Verdict

#: Up to so many times its bound an error may be luck: wrong ports are beyond that, most of them by a factor of 10^6.
DOUBTFUL = 10.0
#: Runs of the reference that are added to those of :data:`.gate.NOISE_RUNS`.
MORE_RUNS = {"float32": 20, "float64": 8}
#: What a report says where they cannot be.
UNSETTLED = (
    f"all that differs is within {DOUBTFUL:.0f} times its bound, which may be luck of the few runs by which the "
    "reference's rounding was measured; a gate that can run the reference itself measures by more"
)


def is_doubtful(verdict: Verdict) -> bool:
    """Whether all that is wrong is tensors that are little beyond their bounds."""
    margins = {(one.name, one.dtype): one.margin for one in verdict.comparisons if not one.passed}
    return bool(verdict.findings) and all(
        finding.verdict in OF_TENSORS and margins.get((finding.name, finding.dtype), math.inf) <= DOUBTFUL
        for finding in verdict.findings
    )


def measure_again(jobs: Sequence[Path], console: Console, python: str) -> list[dict[str, Any]]:
    """What the reference of each job is off by in more runs: by tensor ``noise``, ``noise_max``, by dtype.

    Args:
        jobs: folders of jobs that both workers have run.
        python: the reference's interpreter.

    Raises:
        Inconclusive: it failed.
    """
    for job in jobs:
        (job / "remeasure").mkdir()
        files.write_json(job / "remeasure" / "runs.json", MORE_RUNS)
    run_workers(jobs, console, {"reference": python}, task="remeasure")
    return [files.read_json(job / "remeasure" / "reference.json") for job in jobs]


def with_more_runs(reference: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The reference's result, measured by its own runs and those of :func:`measure_again`."""
    return {
        **reference,
        "tensors": {name: _joined(record, more[name]) for name, record in reference["tensors"].items()},
    }


def _joined(record: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    added = {
        key: {dtype: [*runs, *more[key][dtype]] for dtype, runs in record[key].items()}
        for key in ("noise", "noise_max")
    }
    return {**record, **added}


def _settled(reference: Mapping[str, Any], verdict: Verdict, more: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`with_more_runs`, with a note of what ``verdict`` was without them."""
    settled = with_more_runs(reference, more)
    worst = max((one for one in verdict.comparisons if not one.passed), key=lambda one: one.margin)
    few, all_runs = (_counts(result["tensors"][worst.name]["noise"]) for result in (reference, settled))
    note = (
        f"the reference's rounding was measured by {all_runs} runs, since by {few} alone {worst.name} was at "
        f"{worst.margin:.2g} of its bound in {worst.dtype}"
    )
    return {**settled, "notes": [*reference.get("notes", []), note]}


def _counts(runs: Mapping[str, Sequence[Any]]) -> str:
    return " and ".join(f"{len(runs[dtype])} {dtype}" for dtype in MORE_RUNS)


def settle(
    jobs: Sequence[Path], judged: Sequence[tuple[dict[str, Any], Verdict]], console: Console, python: str
) -> list[dict[str, Any]]:
    """The reference's results of jobs, measured by more runs where a verdict is doubtful.

    Args:
        judged: of each job, the reference's result and the verdict by it.
    """
    doubtful = [job for job, (_, verdict) in zip(jobs, judged, strict=True) if is_doubtful(verdict)]
    if not doubtful:
        return [reference for reference, _ in judged]
    total = sum(MORE_RUNS.values())
    console.print(f"parity gate: near the bounds; {total} more runs of the reference", highlight=False, soft_wrap=True)
    try:
        more = dict(zip(doubtful, measure_again(doubtful, console, python), strict=True))
    except Inconclusive as problem:
        console.print(f"parity gate: {problem}", markup=False)
        return [reference for reference, _ in judged]
    return [
        _settled(reference, verdict, more[job]) if job in more else reference
        for job, (reference, verdict) in zip(jobs, judged, strict=True)
    ]
