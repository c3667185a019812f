"""Sweeps over right ports, which the gate may not stop: random shapes and weights, or a checkpoint on random batches.

The section "Trials" of ``toolkit/parity/MEASUREMENTS.md`` has the results: false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.text import Text

from models.families import part
from toolkit.machine.scratch import scratch_folder
from toolkit.parity.followup import trace
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.followup.precision import DTYPE, is_judged, judge_operations
from toolkit.parity.followup.remeasure import remeasure
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.job.build import workers_of, write_request
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import read_results
from toolkit.parity.job.synthetic import KINDS, SyntheticWeights, random_batch, randomize_constants
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.judge.verdict import judge
from toolkit.parity.trials.choices import choices, chooser

#: Number of a sweep's gates that two processes do one after another before they are shown.
AT_A_TIME = 20
#: Settings of a run's updates.
TRAINING: dict[str, tuple] = {
    "max_steps": (2, 12, 700),
    "batch_size": (1, 2),
    "gradient_accumulation_steps": (1, 2, 4),
    "lr_scheduler": ("linear", "cosine", "constant"),
    "warmup_ratio": (0.0, 0.1, 0.3),
    "weight_decay": (0.0, 0.01, 0.3),
    "max_grad_norm": (None, 1.0, 0.01),
}
BATCH_SIZES = (1, 2, 5)


class Gates(Protocol):
    """Says how right ports are judged, and what varies among them."""

    def judge_all(self, requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
        """As :func:`judge_all`."""

    def shown(self, request: GateRequest) -> str:
        """Return what varies, for the line that reports it."""


def sweep(
    make: Callable[[int], GateRequest], seeds: Sequence[int], console: Console, gates: Gates | None = None
) -> list[int]:
    """Gate the port that ``make`` makes of each seed, and trace it to the operation. The families' are right: one that
    is stopped is a false alarm. Whether a user's is right, the gates say.

    Args:
        gates: for a pair of the user's.

    Returns:
        The seeds of gates that were stopped, or in which an operation was said to be wrong.
    """
    alarms, unmeasured = [], 0
    shown = gates.shown if gates else _shown
    for some in (seeds[start : start + AT_A_TIME] for start in range(0, len(seeds), AT_A_TIME)):
        requests = {seed: make(seed) for seed in some}
        judged = (gates.judge_all if gates else judge_all)(list(requests.values()), console)
        for (seed, request), (verdict, traced) in zip(requests.items(), judged, strict=True):
            wrong = [f"{one.name}: {one.message}" for one in verdict.findings]
            faulty = [one.text() for one in traced.faulty if one.dtype != DTYPE]  # those are findings, or luck
            wrong = [*faulty, *wrong] if gates else [*wrong, *faulty]
            outcome = [("DRIFT" if gates else "ALARM", "red"), f" {wrong[0]}"] if wrong else ["right"]
            if verdict.inconclusive and not traced.faulty:
                outcome, wrong = [f"not measurable: {wrong[0]}"], []
                unmeasured += 1
            worst = max(comparison.margin for comparison in verdict.comparisons if comparison.informative)
            by_itself = max([traced.worst, *(one.margin for one in traced.faulty)])
            nearest = f"nearest {_margin(worst)} of its bound, an operation by itself {_margin(by_itself)}"
            console.print(Text.assemble(f"{seed}: ", *outcome, f", {nearest}; {shown(request)}"), soft_wrap=True)
            if wrong:
                alarms.append(seed)
    beside = f" ({unmeasured} not measurable: the reference's own float64 is noise)" if unmeasured else ""
    met = f"drift in {len(alarms)} of" if gates else f"{len(alarms)} false alarms in"
    console.print(f"{met} {len(seeds)} gates{beside}", highlight=False)
    return alarms


def _margin(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.1e}"


def _shown(request: GateRequest) -> str:
    kind = getattr(request.weights, "kind", "given")
    shown = [f"{key} {request.config[key]}" for key in family_part(request.model, "sweep").SHOWN]
    settings = [f"{key} {value}" for key, value in request.port.items()]
    return ", ".join([f"{kind} weights", *shown, *settings])


def judge_all(requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
    """Return the verdict and operation trace of each of many gates, whose jobs two processes do one after another."""
    workers = workers_of(requests[0])
    with scratch_folder("sweep-") as scratch:
        jobs = [scratch / str(number) for number in range(len(requests))]
        for request, job in zip(requests, jobs, strict=True):
            write_request(request, randomize_constants(request.weights, request.seed)[0], job)
        found = judge_jobs(jobs, console, workers)
    for request, (verdict, operations) in zip(requests, found, strict=True):
        if is_judged(request.dtypes):
            judge_operations(verdict, operations)
    return found


def judge_jobs(
    jobs: Sequence[Path], console: Console, workers: Mapping[str, str]
) -> list[tuple[Verdict, OperationTrace]]:
    """As :func:`judge_all`, for job folders that are filled."""
    run_workers(jobs, console, workers)
    results = [read_results(job) for job in jobs]
    python = workers["reference"]
    first = []
    for job, (reference, candidate) in zip(jobs, results, strict=True):
        reference = with_rounded_constants(job, reference, candidate, console, python)
        first.append((reference, judge(reference, candidate)))
    references = remeasure(jobs, first, console, python)
    traced = trace.measure(jobs, console, workers)
    return [
        (
            judge(reference, candidate),
            trace.summary(records, forced.dtypes, reference.facts.bucket_slack, trace.fingerprints_of(job)),
        )
        for job, reference, (_, candidate), (records, forced) in zip(jobs, references, results, traced, strict=True)
    ]


def varied(request: GateRequest, seed: int, fixed: Collection[str] = ()) -> GateRequest:
    """Return a gate on the same model and parameters with another batch, draws, dropout rates and hash rounds. The
    ``fixed`` keys of the configuration stay."""
    one_of, _ = chooser(seed)
    varied = choices(family_part(request.model, "sweep").VARIED, one_of)
    drawn = {key: value for key, value in varied.items() if key not in fixed}
    config = {**request.config, **drawn}
    length = request.batch["input_ids"].shape[1]
    batch = random_batch(config, request.head, one_of(*BATCH_SIZES), length, seed, request.model)
    return replace(request, config=config, batch=batch, seed=seed)


def random_request(model: str, seed: int, kind: str | None = None) -> GateRequest:
    """Return a right port of a random shape: head, configuration and length, drawn with ``sweep`` of its family. The
    weights are of a random kind, or of ``kind``."""
    one_of, _ = chooser(seed)
    known = family_part(model, "sweep")
    head = one_of(*part(model, "weights").HEADS)
    config, length = known.draw(head, one_of)
    drawn = one_of(*KINDS)  # always drawn, so that a seed has the same shape with weights of any kind
    resolved = part(model, "schema").resolve(config)
    return GateRequest(
        model=model,
        head=head,
        config=config,
        weights=SyntheticWeights(resolved, head, seed, kind or drawn, model),
        batch=random_batch(config, head, one_of(*BATCH_SIZES), length, seed, model),
        seed=seed,
        port=choices(known.PORT, one_of),
        training=TrainingSettings(**choices(TRAINING, one_of)),
    )
