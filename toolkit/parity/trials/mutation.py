"""Trials of the gate: it must catch every mutant of the catalogue, and name the mutant's culprit.

A mutant is a deliberate fault of the port.
"""

from __future__ import annotations

import itertools
import math
import pydoc_data.topics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

from models.families import part
from toolkit.errors import UserError
from toolkit.machine.scratch import scratch_folder
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import (
    CandidateResult,
    ForcedInputResult,
    PortResult,
    ReferenceResult,
    read_results,
)
from toolkit.parity.followup import precision, remeasure, trace
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.inputs.synthetic import SyntheticWeights, random_batch
from toolkit.parity.inputs.texts import LAYOUTS
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import TokenizerJob, TrainingSettings
from toolkit.parity.judge.bounds import UNINFORMATIVE, UNIT
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import OF_RECOMPUTING, Verdict
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.mutants import (
    OF_ADAMW,
    Mutant,
    catalogue,
    faults_of_heads,
    faults_of_loops,
    faults_of_precision,
    keys_of_head,
)
from toolkit.parity.mutants.generic import HARMLESS, NOT_USED
from toolkit.parity.mutants.shared_faults import CLASS_WEIGHTS, LABEL_SMOOTHING, LORA, OPTIMIZERS
from toolkit.parity.pairs.prepare import prepare_job
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.report.report import short_name
from toolkit.parity.request.build import workers_of
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials import pair_faults
from toolkit.recipe.keys import OPTIMIZER_KEYS
from toolkit.terminal.dotted_text import DottedText

#: Largest relative change of the loss or a gradient that counts as a change of rounding only.
MAX_ROUNDING = 64 * UNIT["float64"]
#: Class weight of each label in the trials of class weights.
TRIAL_WEIGHTS = (0.25, 3.0, 1.5)


def trial_request(
    model: str, kind: str, seed: int, device: str = "cpu", reference_python: str | None = None, dtype: str = "float64"
) -> GateRequest:
    """Return the request for a gate on a family's trial model, with settings that make faults visible.

    The batch has much padding, and the optimizer has a large weight decay and clips each update.

    Args:
        model: name of the family.
        kind: kind of the synthetic weights.
        seed: seed of the weights and the batch.
        device: device of both sides.
        reference_python: interpreter of the reference; None for this interpreter.
        dtype: dtype of the trials.
    """
    trial = family_part(model, "trial")
    return GateRequest(
        model=model,
        head=trial.HEAD,
        config=trial.CONFIG,
        weights=SyntheticWeights(part(model, "schema").resolve(trial.CONFIG), trial.HEAD, seed, kind, model),
        batch=random_batch(trial.CONFIG, trial.HEAD, len(LAYOUTS), trial.LENGTH, seed, model),
        dtypes=(dtype,),
        device=device,
        seed=seed,
        training=TrainingSettings(weight_decay=0.1, max_grad_norm=0.001),
        reference_python=reference_python,
    )


def trial_tokenizer(model: str, folder: Path) -> TokenizerJob:
    """Train a small tokenizer on texts that come with Python, and return the job that compares it.

    Args:
        model: name of the family.
        folder: folder to save the tokenizer in.
    """
    texts = list(pydoc_data.topics.topics.values())[:20]
    return family_part(model, "trial").train_tokenizer(texts, folder)


def trial_checkpoint(request: GateRequest, folder: Path) -> Path:
    """Save the weights of a request as a checkpoint, and return the checkpoint's folder.

    Args:
        request: request with the weights.
        folder: folder to create.
    """
    folder.mkdir()
    weights = {name: np.ascontiguousarray(request.weights[name]) for name in request.weights}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weighted_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request with class weights: once with one label, and once with several labels for each text.

    Nothing is yielded for heads other than sequence classification.
    """
    if request.head != "sequence_classification":
        return
    num_texts, num_labels = len(request.batch["input_ids"]), len(TRIAL_WEIGHTS)
    classes = np.arange(num_texts) % num_labels
    label_sets = (classes[:, None] != np.arange(num_labels)).astype(np.float32)
    for kind in CLASS_WEIGHTS:
        config = {**request.config, "problem_type": kind, "num_labels": num_labels}
        batch = {**request.batch, "labels": label_sets if kind == "multi_label_classification" else classes}
        yield replace(request, config=config, batch=batch, class_weights=TRIAL_WEIGHTS)


def smoothed_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request with class weights and label smoothing, with one label for each text.

    Nothing is yielded for heads other than sequence classification.
    """
    single_label_trials = (trial for trial in weighted_trials(request) if trial.batch["labels"].ndim == 1)
    return (replace(trial, label_smoothing=0.2) for trial in single_label_trials)


def optimizer_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request with each optimizer except AdamW, each with its default settings."""
    for kind in OPTIMIZERS:
        default_settings: dict[str, Any] = {
            key: OPTIMIZER_KEYS[kind].get(f"train.{key}") for key in ("adam_beta1", "adam_beta2", "momentum")
        }
        yield replace(
            request, training=replace(request.training, optimizer=kind, adam_epsilon=None, **default_settings)
        )


def head_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request with each other head of the family that has mutants for this head only."""
    trial_weights, (num_texts, length) = request.weights, request.batch["input_ids"].shape
    assert isinstance(trial_weights, SyntheticWeights)
    for head in faults_of_heads(request.model):
        keys = {**request.config, **keys_of_head(request.model, head)}
        config = part(request.model, "schema").resolve(keys)
        weights = SyntheticWeights(config, head, trial_weights.seed, trial_weights.kind, request.model)
        batch = random_batch(config, head, num_texts, length, trial_weights.seed, request.model)
        yield replace(request, head=head, config=keys, weights=weights, batch=batch)


def faults_of(request: GateRequest) -> tuple[Mutant, ...]:
    """Return the mutants that a family's request is tried with.

    They are mutants of label smoothing, another optimizer, an adapter, another head or class weights if the request has
    these, and otherwise the family's mutants in the dtypes of the request.
    """
    if request.label_smoothing:
        return LABEL_SMOOTHING
    if request.training.optimizer != "adamw":
        return OPTIMIZERS[request.training.optimizer]
    if request.lora is not None:
        return LORA
    if request.head in (head_faults := faults_of_heads(request.model)):
        return head_faults[request.head]
    if request.class_weights is None:
        dtype_faults = faults_of_precision(request.model), faults_of_loops(request.model), OF_ADAMW
        faults = (*catalogue(request.model), *itertools.chain(*dtype_faults))
        return tuple(mutant for mutant in faults if mutant.dtype in request.dtypes)
    return CLASS_WEIGHTS[request.config["problem_type"]]


@dataclass(frozen=True)
class Trial:
    """The outcome of the gate on one mutant.

    Attributes:
        mutant: deliberate fault that the port had.
        is_caught: whether the gate failed.
        culprit: name of the tensor, or other object, that the gate reports; empty if the gate passed. For a gradient of
            the recomputing backward, the name follows its verdict and a colon.
        verdict: verdict of the finding; empty if the gate passed.
        margin: the culprit's error in units of its bound; None for a finding without an error.
        operation: first operation that differs in isolation, with its source line; empty if there is none, and None if
            no tensor of the step differs.
        is_still: whether the fault moves the loss and the gradients of a pair's port by at most their rounding.
    """

    mutant: Mutant
    is_caught: bool
    culprit: str
    verdict: str
    margin: float | None
    operation: str | None = None
    is_still: bool = False

    @property
    def is_named(self) -> bool:
        """Whether the gate reported the mutant's expected culprit, and its expected wrong operation."""
        # No operation differs if an epsilon is tiny compared with the variance.
        if self.verdict == "structure" and self.operation is None:
            return self.mutant.culprit in self.culprit
        return self.mutant.culprit in self.culprit and self.mutant.operation in (self.operation or "")

    @property
    def passed(self) -> bool:
        """Whether a fault was caught and named, or a harmless change was not caught."""
        return not self.is_caught if self.mutant.harmless else self.is_caught and self.is_named


class Trials(list[Trial]):
    """List of the trials of one request.

    Attributes:
        untried_parts: sentence that counts the parts of a pair's port without a mutant; empty for a family.
    """

    untried_parts = ""


def try_mutants(request: GateRequest, console: Console, names: Sequence[str] | None = None) -> Trials:
    """Run the gate once for each mutant, all on the same run of the reference, and return the outcomes.

    Args:
        request: gate without a fault.
        console: console for progress.
        names: names of the mutants; None for all mutants.

    Raises:
        UserError: the port of a pair differs from the reference even without a fault.
    """
    workers = workers_of(request)
    with scratch_folder("mutants-") as scratch:
        job = scratch / "job"
        mutants = (
            [] if request.pair else [fault for fault in faults_of(request) if names is None or fault.name in names]
        )
        if any(mutant.tokenizer for mutant in mutants):
            request = replace(request, tokenizer=trial_tokenizer(request.model, scratch / "tokenizer"))
        if any(mutant.loader for mutant in mutants):
            request = replace(request, checkpoint=str(trial_checkpoint(request, scratch / "checkpoint")))
        prepared_job = prepare_job(request, job, console)
        sides = prepared_job.sides
        mutants = pair_faults.faults_of(sides) if sides else mutants
        prepared_job.put_mutants([mutant.name for mutant in mutants])
        run_workers([job], console, workers)
        reference, candidate = read_results(job)
        if sides:
            reference = with_rounded_constants(job, reference, candidate, console, workers["reference"])
            check_port(reference, candidate)
        [(records, forced_input)] = trace.measure_operations([job], console, workers)
        trials = judge_mutants(mutants, job, reference, candidate, records, forced_input, workers, console)
    if not sides:
        return Trials(trials)
    trials_with_effects = Trials(
        add_effect(trial, candidate.mutants[trial.mutant.name].moved, reference.tensors) for trial in trials
    )
    trials_with_effects.untried_parts = pair_faults.count_untried(sides, mutants)
    return trials_with_effects


def check_port(reference: ReferenceResult, candidate: CandidateResult) -> None:
    """Check that a port without a mutant passes the gate.

    Args:
        reference: results of the reference.
        candidate: results of the port.

    Raises:
        UserError: the port does not pass.
    """
    if culprit := first_at_fault(judge(reference, candidate), list(reference.tensors)):
        raise UserError(f"the port drifts as it is ({culprit.name}); toolkit parity says more")


def add_effect(trial: Trial, changes: Mapping[str, TensorStats], true_records: Mapping[str, TensorRecord]) -> Trial:
    """Return a trial with the effect of its mutant on the loss and the gradients of the port.

    A mutant that moves none of them and that the gate has not caught is harmless, unless another batch would show it.

    Args:
        trial: trial on a pair's port.
        changes: change of the loss and of each gradient by the mutant, by name.
        true_records: record of each tensor of R64 with the noise of float64, by name.
    """
    relative_changes = [
        _relative_change(stats, true_records[name]) for name, stats in changes.items() if name in true_records
    ]
    if not relative_changes or max(relative_changes) > MAX_ROUNDING:
        return trial
    if trial.is_caught or trial.mutant.unreached_reason:
        return replace(trial, is_still=True)
    reason = HARMLESS.get(trial.mutant.name.partition(":")[0], NOT_USED)
    size = (
        f"move by at most {max(relative_changes):.0e} of themselves"
        if max(relative_changes)
        else "are the same to the last bit"
    )
    proof = f"{reason}: the loss and {len(relative_changes) - 1} gradients in float64 {size}"
    return replace(trial, mutant=replace(trial.mutant, harmless=proof), is_still=True)


def _relative_change(change_stats: TensorStats, true_record: TensorRecord) -> float:
    """Return the change of a tensor by a mutant, relative to the tensor's RMS in R64.

    The result is 0 if the tensor is only rounding in R64 itself.

    Args:
        change_stats: figures of the change.
        true_record: record of R64's tensor with the noise of float64.
    """
    noise = [run for run in true_record.noise["float64"] if run is not None]
    if not true_record.rms or max(noise, default=0.0) > UNINFORMATIVE * true_record.rms:
        return 0.0
    return math.inf if change_stats.rms is None else change_stats.rms / true_record.rms


def judge_mutants(
    mutants: Sequence[Mutant],
    job: Path,
    reference: ReferenceResult,
    candidate: CandidateResult,
    records: Mapping[str, TensorRecord],
    forced_input: ForcedInputResult,
    workers: Mapping[str, str],
    console: Console,
) -> list[Trial]:
    """Return the outcome of the gate on each mutant of a job that both workers have run.

    Args:
        mutants: mutants of the job.
        job: folder of the job.
        reference: results of the reference.
        candidate: results of the port, with and without each mutant.
        records: record of each tensor in the reference's operation trace, by name.
        forced_input: the port's operation trace, with each mutant.
        workers: interpreter of each side.
        console: console for progress.
    """
    verdicts = {mutant.name: _judge_mutant(mutant, reference, candidate) for mutant in mutants}
    if near_bound := [
        name for name, verdict in verdicts.items() if verdict is not None and remeasure.is_near_bound(verdict)
    ]:
        [repeated_runs] = remeasure.measure_again([job], console, workers["reference"])
        remeasured_reference = remeasure.with_more_runs(reference, repeated_runs)
        verdicts |= {m.name: _judge_mutant(m, remeasured_reference, candidate) for m in mutants if m.name in near_bound}
    order = list(reference.tensors)
    is_pair = files.read_job(job).pair is not None
    trials = []
    for mutant in mutants:
        if (verdict := verdicts[mutant.name]) is None:
            trials.append(Trial(mutant, True, candidate.mutants[mutant.name].raised or "", "raised", None))
        else:
            operation_trace = trace.summarize_trace(
                records, forced_input.mutants[mutant.name], reference.facts.bucket_slack
            )
            trials.append(_make_trial(mutant, verdict, order, operation_trace, is_pair=is_pair))
    return trials


def _judge_mutant(mutant: Mutant, reference: ReferenceResult, candidate: CandidateResult) -> Verdict | None:
    """Return the gate's verdict on a mutant, or None if the port raised an error in the step.

    Args:
        mutant: fault of the port.
        reference: results of the reference.
        candidate: results of the port with the mutant.
    """
    mutant_result = candidate.mutants[mutant.name]
    if mutant_result.raised is not None:
        return None
    tokens = mutant_result.tokens if mutant.tokenizer else candidate.tokens  # other mutants do not change them
    port_results = {field.name: getattr(mutant_result, field.name) for field in fields(PortResult)}
    return judge(reference, CandidateResult(**{**port_results, "tokens": tokens}))


def _make_trial(
    mutant: Mutant, verdict: Verdict, order: list[str], operation_trace: trace.OperationTrace, *, is_pair: bool
) -> Trial:
    """Return the outcome of the gate on a mutant whose port raised no error.

    Args:
        mutant: the mutant.
        verdict: the gate's verdict on the mutant.
        order: names of the reference's tensors, in execution order.
        operation_trace: operation trace of the mutant.
        is_pair: whether the port belongs to a user's pair.
    """
    if precision.is_judged((mutant.dtype,)):
        precision.judge_operations(verdict, operation_trace)
    culprit = first_at_fault(verdict, order)
    if culprit is None:
        return Trial(mutant, False, "", "", None)
    comparisons = verdict.compared_by(culprit.verdict)
    margins = {comparison.name: comparison.margin for comparison in comparisons}
    label = f"{culprit.verdict}:{culprit.name}" if culprit.verdict in OF_RECOMPUTING else culprit.name
    if (
        is_pair
        and TensorName.parse(culprit.name).kind == "gradient"
        and (first := trace.first_faulty_operation(operation_trace, culprit))
    ):
        label = first.name  # as in the headline
    operation = None
    has_no_backward = bool(mutant.operation) and trace.lacks_gradients(verdict)
    if culprit.verdict == "precision" or trace.is_wanted(verdict) or has_no_backward:
        faulty_operations = operation_trace.faulty
        if culprit.verdict == "precision":
            faulty_operations = [faulty for faulty in faulty_operations if faulty.name == culprit.name]
            margins[culprit.name] = faulty_operations[0].margin
        operation = f"{faulty_operations[0].name} {faulty_operations[0].where}" if faulty_operations else ""
    return Trial(mutant, True, label, culprit.verdict, margins.get(culprit.name), operation)


def _expected_names(mutant: Mutant) -> str:
    """Return the culprit and the operation that the gate must name for a mutant, as text."""
    return "nothing" if mutant.harmless else " and ".join(filter(None, (mutant.culprit, mutant.operation)))


def print_trials(trials: Trials, console: Console) -> None:
    """Print a table row for each mutant, then the score and the sentence on parts without a mutant."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("mutant", "caught", "by", "named", "wrong by itself"):
        table.add_column(title, overflow="fold")
    table.add_column("error / bound", justify="right")
    for trial in trials:
        outcome = "harmless" if trial.mutant.harmless and not trial.is_caught else "yes" if trial.is_caught else "NO"
        margin = "" if trial.margin is None else f"{trial.margin:.1e}"
        name = short_name(trial.culprit) if trial.culprit else trial.mutant.harmless or trial.mutant.unreached_reason
        style = "" if trial.passed else "red"
        if trial.is_caught and not trial.passed:
            name += f", not {_expected_names(trial.mutant)}"
        name += "; it moves no loss or gradient of the step" if trial.is_still and trial.is_caught else ""
        operation_name, _, where = (trial.operation or "").partition(" ")
        operation = DottedText(f"{short_name(operation_name)} {where}".strip())
        table.add_row(trial.mutant.name, outcome, trial.verdict, DottedText(name), operation, margin, style=style)
    console.print(table)
    faults = [trial for trial in trials if not trial.mutant.harmless]
    harmless = [trial for trial in trials if trial.mutant.harmless]
    console.print(
        f"{sum(t.is_caught for t in faults)} of {len(faults)} faults caught, {sum(t.passed for t in faults)} named; "
        f"{sum(t.passed for t in harmless)} of {len(harmless)} harmless changes passed; "
        f"of {sum(t.mutant.operation != '' for t in faults)} the operation is known and was to be named, too",
        highlight=False,
    )
    if trials.untried_parts:
        console.print(trials.untried_parts, highlight=False)
