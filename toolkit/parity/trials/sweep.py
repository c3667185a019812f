"""Sweeps over correct ports, which must pass the gate: random shapes and weights, or a checkpoint on random batches.

The section "Trials" of ``toolkit/parity/MEASUREMENTS.md`` has the number of false alarms, correct ports that fail.
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
from toolkit.parity.exchange.results import read_results
from toolkit.parity.followup import trace
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.followup.precision import DTYPE, is_judged, judge_operations
from toolkit.parity.followup.remeasure import remeasure_near_bounds
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.inputs.synthetic import KINDS, SyntheticWeights, random_batch, randomize_constants
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.judge.verdict import judge
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request.build import workers_of, write_request
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.choices import choose_values, make_chooser

#: Number of gates whose jobs the two workers run before their outcomes are printed.
GROUP_SIZE = 20
#: Values that each training setting of a gate may have, by the setting.
TRAINING: dict[str, tuple] = {
    "max_steps": (2, 12, 700),
    "batch_size": (1, 2),
    "gradient_accumulation_steps": (1, 2, 4),
    "lr_scheduler": ("linear", "cosine", "constant"),
    "warmup_ratio": (0.0, 0.1, 0.3),
    "weight_decay": (0.0, 0.01, 0.3),
    "max_grad_norm": (None, 1.0, 0.01),
}
#: Possible numbers of texts in a batch.
BATCH_SIZES = (1, 2, 5)


class SweepGates(Protocol):
    """Interface of a sweep: how its gates are judged and described."""

    def judge_all(self, requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
        """Return the verdict and the operation trace of each request's gate."""

    def describe_request(self, request: GateRequest) -> str:
        """Return the settings of a request that vary between the gates of a sweep, as text."""


def run_sweep(
    make_request: Callable[[int], GateRequest], seeds: Sequence[int], console: Console, gates: SweepGates | None = None
) -> list[int]:
    """Run the gate and trace the operations for each seed, print an outcome for each, and return the failed seeds.

    The ports of families are correct, so any failed gate is a false alarm. The port of a pair may have a fault, so a
    failed gate is printed as drift.

    Args:
        make_request: function that returns the request for a seed.
        seeds: seeds of the gates.
        console: console for the outcomes.
        gates: sweep over a user's pair; None for a family.

    Returns:
        Seeds of the gates that failed or reported a faulty operation.
    """
    alarms, num_unmeasured = [], 0
    describe_request = gates.describe_request if gates else _describe_request
    for group in (seeds[start : start + GROUP_SIZE] for start in range(0, len(seeds), GROUP_SIZE)):
        requests = {seed: make_request(seed) for seed in group}
        results = (gates.judge_all if gates else judge_all)(list(requests.values()), console)
        for (seed, request), (verdict, operation_trace) in zip(requests.items(), results, strict=True):
            messages = [f"{one.name}: {one.message}" for one in verdict.findings]
            # In bfloat16, faulty operations beyond luck are findings already.
            faulty_operations = [one.text() for one in operation_trace.faulty if one.dtype != DTYPE]
            messages = [*faulty_operations, *messages] if gates else [*messages, *faulty_operations]
            outcome = [("DRIFT" if gates else "ALARM", "red"), f" {messages[0]}"] if messages else ["right"]
            if verdict.inconclusive and not operation_trace.faulty:
                outcome, messages = [f"not measurable: {messages[0]}"], []
                num_unmeasured += 1
            worst_margin = max(comparison.margin for comparison in verdict.comparisons if comparison.informative)
            worst_in_isolation = max([operation_trace.worst, *(one.margin for one in operation_trace.faulty)])
            distances = f"nearest {_format_margin(worst_margin)} of its bound"
            distances += f", an operation by itself {_format_margin(worst_in_isolation)}"
            console.print(
                Text.assemble(f"{seed}: ", *outcome, f", {distances}; {describe_request(request)}"), soft_wrap=True
            )
            if messages:
                alarms.append(seed)
    unmeasured_note = (
        f" ({num_unmeasured} not measurable: the reference's own float64 is noise)" if num_unmeasured else ""
    )
    outcome_counts = f"drift in {len(alarms)} of" if gates else f"{len(alarms)} false alarms in"
    console.print(f"{outcome_counts} {len(seeds)} gates{unmeasured_note}", highlight=False)
    return alarms


def _format_margin(margin: float) -> str:
    """Return an error in units of its bound as text: `0.53`, or `1.2e+06` from 100 on."""
    return f"{margin:.2f}" if margin < 100 else f"{margin:.1e}"


def _describe_request(request: GateRequest) -> str:
    """Return the kind of weights, the shape and the port's settings in a family's request, as text."""
    kind = getattr(request.weights, "kind", "given")
    config_texts = [f"{key} {request.config[key]}" for key in family_part(request.model, "sweep").PRINTED_KEYS]
    setting_texts = [f"{key} {value}" for key, value in request.port.items()]
    return ", ".join([f"{kind} weights", *config_texts, *setting_texts])


def judge_all(requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
    """Return the verdict and the operation trace of each request's gate, for a family.

    The jobs run one after another in the same two processes.

    Args:
        requests: requests for the gates.
        console: console for progress.
    """
    workers = workers_of(requests[0])
    with scratch_folder("sweep-") as scratch:
        jobs = [scratch / str(number) for number in range(len(requests))]
        for request, job in zip(requests, jobs, strict=True):
            write_request(request, randomize_constants(request.weights, request.seed)[0], job)
        results = judge_jobs(jobs, console, workers)
    for request, (verdict, operations) in zip(requests, results, strict=True):
        if is_judged(request.dtypes):
            judge_operations(verdict, operations)
    return results


def judge_jobs(
    jobs: Sequence[Path], console: Console, workers: Mapping[str, str]
) -> list[tuple[Verdict, OperationTrace]]:
    """Return the verdict and the operation trace of each job.

    Args:
        jobs: job folders with all files that the workers need.
        console: console for progress.
        workers: interpreter of each side.
    """
    run_workers(jobs, console, workers)
    results = [read_results(job) for job in jobs]
    python = workers["reference"]
    first_verdicts = []
    for job, (reference, candidate) in zip(jobs, results, strict=True):
        reference = with_rounded_constants(job, reference, candidate, console, python)
        first_verdicts.append((reference, judge(reference, candidate)))
    references = remeasure_near_bounds(jobs, first_verdicts, console, python)
    traces = trace.measure_operations(jobs, console, workers)
    return [
        (
            judge(reference, candidate),
            trace.summarize_trace(
                records, forced_input.dtypes, reference.facts.bucket_slack, trace.fingerprints_of(job)
            ),
        )
        for job, reference, (_, candidate), (records, forced_input) in zip(
            jobs, references, results, traces, strict=True
        )
    ]


def vary_request(request: GateRequest, seed: int, fixed_keys: Collection[str] = ()) -> GateRequest:
    """Return a request for the same model and parameters, with another batch, draws, dropout rates and hash rounds.

    Args:
        request: gate on a checkpoint's model.
        seed: seed of the random choices.
        fixed_keys: keys of the configuration that do not change.
    """
    one_of = make_chooser(seed)
    values = choose_values(family_part(request.model, "sweep").VARIED_VALUES, one_of)
    config = {**request.config, **{key: value for key, value in values.items() if key not in fixed_keys}}
    length = request.batch["input_ids"].shape[1]
    batch = random_batch(config, request.head, one_of(*BATCH_SIZES), length, seed, request.model)
    return replace(request, config=config, batch=batch, seed=seed)


def random_request(model: str, seed: int, kind: str | None = None) -> GateRequest:
    """Return a request for a correct port with a random head, configuration and length.

    Args:
        model: name of the family, whose ``sweep`` draws the shape.
        seed: seed of the random choices.
        kind: kind of the synthetic weights; None for a random kind.
    """
    one_of = make_chooser(seed)
    family_sweep = family_part(model, "sweep")
    head = one_of(*part(model, "weights").HEADS)
    config, length = family_sweep.draw_config(head, one_of)
    drawn_kind = one_of(*KINDS)  # drawn even if unused, so that a seed has the same shape with every kind
    resolved_config = part(model, "schema").resolve(config)
    return GateRequest(
        model=model,
        head=head,
        config=config,
        weights=SyntheticWeights(resolved_config, head, seed, kind or drawn_kind, model),
        batch=random_batch(config, head, one_of(*BATCH_SIZES), length, seed, model),
        seed=seed,
        port=choose_values(family_sweep.PORT_VALUES, one_of),
        training=TrainingSettings(**choose_values(TRAINING, one_of)),
    )
