"""The gate on trial: every fault of the catalogue must be caught and named."""

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
from toolkit.parity.followup import precision, remeasure, trace
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.job import files
from toolkit.parity.job.build import workers_of
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import TokenizerJob, TrainingSettings
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import CandidateResult, ForcedInputResult, PortResult, ReferenceResult, read_results
from toolkit.parity.job.synthetic import SyntheticWeights, random_batch
from toolkit.parity.job.texts import LAYOUTS
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
from toolkit.parity.mutants.shared import CLASS_WEIGHTS, LABEL_SMOOTHING, LORA, OPTIMIZERS
from toolkit.parity.pairs.prepare import prepare
from toolkit.parity.report.report import short_name
from toolkit.parity.trials import pair_faults
from toolkit.recipe.keys import OPTIMIZER_KEYS
from toolkit.terminal.dotted import Dotted

#: A fault that moves neither the loss nor a gradient by more than this part of it has only changed the rounding.
STILL = 64 * UNIT["float64"]
#: Weight of each label in trials of class weights.
TRIAL_WEIGHTS = (0.25, 3.0, 1.5)


def trial_request(
    model: str, kind: str, seed: int, device: str = "cpu", reference_python: str | None = None, dtype: str = "float64"
) -> GateRequest:
    """Return the gate on a family's trial model: synthetic weights of a ``kind``, a batch with much padding, an
    optimizer that decays visibly and clips each update."""
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
    """Train a small tokenizer on texts that come with Python, in ``folder``; the result holds them, too."""
    texts = list(pydoc_data.topics.topics.values())[:20]
    return family_part(model, "trial").train_tokenizer(texts, folder)


def trial_checkpoint(request: GateRequest, folder: Path) -> Path:
    """Leave the request's weights as a checkpoint in ``folder``."""
    folder.mkdir()
    weights = {name: np.ascontiguousarray(request.weights[name]) for name in request.weights}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weighted_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request with class weights, of one label per text and of several; none for a head without classes."""
    if request.head != "sequence_classification":
        return
    count, labels = len(request.batch["input_ids"]), len(TRIAL_WEIGHTS)
    classes = np.arange(count) % labels
    several = (classes[:, None] != np.arange(labels)).astype(np.float32)
    for kind in CLASS_WEIGHTS:
        config = {**request.config, "problem_type": kind, "num_labels": labels}
        batch = {**request.batch, "labels": several if kind == "multi_label_classification" else classes}
        yield replace(request, config=config, batch=batch, class_weights=TRIAL_WEIGHTS)


def smoothed_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request of one label per text with class weights, its labels smoothed; none for another head."""
    single = (one for one in weighted_trials(request) if one.batch["labels"].ndim == 1)
    return (replace(one, label_smoothing=0.2) for one in single)


def optimizer_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request with each optimizer beside AdamW, on its default settings."""
    for kind in OPTIMIZERS:
        own: dict[str, Any] = {
            key: OPTIMIZER_KEYS[kind].get(f"train.{key}") for key in ("adam_beta1", "adam_beta2", "momentum")
        }
        yield replace(request, training=replace(request.training, optimizer=kind, adam_epsilon=None, **own))


def head_trials(request: GateRequest) -> Iterator[GateRequest]:
    """Yield the request with each other head that has faults of its own."""
    plain, (count, length) = request.weights, request.batch["input_ids"].shape
    assert isinstance(plain, SyntheticWeights)
    for head in faults_of_heads(request.model):
        keys = {**request.config, **keys_of_head(request.model, head)}
        config = part(request.model, "schema").resolve(keys)
        weights = SyntheticWeights(config, head, plain.seed, plain.kind, request.model)
        batch = random_batch(config, head, count, length, plain.seed, request.model)
        yield replace(request, head=head, config=keys, weights=weights, batch=batch)


def faults_of(request: GateRequest) -> tuple[Mutant, ...]:
    """Return the catalogue that a request is tried with: its family's, or that of class weights, of smoothed
    labels, of an adapter, of another optimizer or of its head if it has them."""
    if request.label_smoothing:
        return LABEL_SMOOTHING
    if request.training.optimizer != "adamw":
        return OPTIMIZERS[request.training.optimizer]
    if request.lora is not None:
        return LORA
    if request.head in (of_heads := faults_of_heads(request.model)):
        return of_heads[request.head]
    if request.class_weights is None:
        of_dtypes = faults_of_precision(request.model), faults_of_loops(request.model), OF_ADAMW
        faults = (*catalogue(request.model), *itertools.chain(*of_dtypes))
        return tuple(mutant for mutant in faults if mutant.dtype in request.dtypes)
    return CLASS_WEIGHTS[request.config["problem_type"]]


@dataclass(frozen=True)
class Trial:
    """What the gate made of one mutant.

    Attributes:
        caught: whether anything was found.
        culprit: what the gate named, empty where nothing was found. For a gradient of the recomputing backward, the
            verdict is put before it.
        verdict: the verdict that found it.
        margin: the culprit's error in units of its bound; None where it is no matter of size.
        operation: the first operation that is wrong by itself, with its line; empty where there is none, None where no
            tensor of the step differs.
        is_still: of a pair's port, whether the fault moves neither the loss nor a gradient by more than rounding.
    """

    mutant: Mutant
    caught: bool
    culprit: str
    verdict: str
    margin: float | None
    operation: str | None = None
    is_still: bool = False

    @property
    def named(self) -> bool:
        if self.verdict == "structure" and self.operation is None:  # an epsilon, beside a variance of a million
            return self.mutant.culprit in self.culprit
        return self.mutant.culprit in self.culprit and self.mutant.operation in (self.operation or "")

    @property
    def passed(self) -> bool:
        """A fault must be caught and named; a harmless change must not be caught."""
        return not self.caught if self.mutant.harmless else self.caught and self.named


class Trials(list[Trial]):
    """The trials of one request.

    Attributes:
        untried: of a pair's port, a sentence that counts what no fault was put into; empty otherwise.
    """

    untried = ""


def try_mutants(request: GateRequest, console: Console, names: Sequence[str] | None = None) -> Trials:
    """Run the gate once for each mutant (or those of ``names``), all on the same reference run. Raises UserError if a
    pair's port is wrong to begin with, so that faults put into it tell nothing."""
    workers = workers_of(request)
    with scratch_folder("mutants-") as scratch:
        job = scratch / "job"
        mutants = [] if request.pair else [one for one in faults_of(request) if names is None or one.name in names]
        if any(mutant.tokenizer for mutant in mutants):
            request = replace(request, tokenizer=trial_tokenizer(request.model, scratch / "tokenizer"))
        if any(mutant.loader for mutant in mutants):
            request = replace(request, checkpoint=str(trial_checkpoint(request, scratch / "checkpoint")))
        prepared = prepare(request, job, console)
        sides = prepared.sides
        mutants = pair_faults.faults_of(sides) if sides else mutants
        prepared.put_mutants([mutant.name for mutant in mutants])
        run_workers([job], console, workers)
        reference, candidate = read_results(job)
        if sides:
            reference = with_rounded_constants(job, reference, candidate, console, workers["reference"])
            check_right(reference, candidate)
        [(records, traced)] = trace.measure([job], console, workers)
        trials = verdicts_on(mutants, job, reference, candidate, records, traced, workers, console)
    if not sides:
        return Trials(trials)
    trials_with_effects = Trials(
        with_effect(one, candidate.mutants[one.mutant.name].moved, reference.tensors) for one in trials
    )
    trials_with_effects.untried = pair_faults.untried(sides, mutants)
    return trials_with_effects


def check_right(reference: ReferenceResult, candidate: CandidateResult) -> None:
    """Check that a port is right before faults are put into it. Raises UserError if it drifts."""
    if culprit := first_at_fault(judge(reference, candidate), list(reference.tensors)):
        raise UserError(f"the port drifts as it is ({culprit.name}); toolkit parity says more")


def with_effect(trial: Trial, moved: Mapping[str, TensorStats], truth: Mapping[str, TensorRecord]) -> Trial:
    """Add to a trial what its fault does to the loss and the gradients of the port itself, whatever the gate says. A
    fault that moves none of them, and that the gate has not seen, is harmless, unless another batch would show it.

    Args:
        moved: by how much the fault moves each.
        truth: R64's, with the noise of its float64.
    """
    by = [_relative(stats, truth[name]) for name, stats in moved.items() if name in truth]
    if not by or max(by) > STILL:
        return trial
    if trial.caught or trial.mutant.unreached_reason:
        return replace(trial, is_still=True)
    why = HARMLESS.get(trial.mutant.name.partition(":")[0], NOT_USED)
    how = f"move by at most {max(by):.0e} of themselves" if max(by) else "are the same to the last bit"
    proven = f"{why}: the loss and {len(by) - 1} gradients in float64 {how}"
    return replace(trial, mutant=replace(trial.mutant, harmless=proven), is_still=True)


def _relative(moved: TensorStats, true: TensorRecord) -> float:
    """Return the relative change of a tensor; 0 for one that is nothing but rounding in R64 itself."""
    noise = [run for run in true.noise["float64"] if run is not None]
    if not true.rms or max(noise, default=0.0) > UNINFORMATIVE * true.rms:
        return 0.0
    return math.inf if moved.rms is None else moved.rms / true.rms


def verdicts_on(
    mutants: Sequence[Mutant],
    job: Path,
    reference: ReferenceResult,
    candidate: CandidateResult,
    records: Mapping[str, TensorRecord],
    traced: ForcedInputResult,
    workers: Mapping[str, str],
    console: Console,
) -> list[Trial]:
    """Return what the gate makes of each mutant of a job that both workers have run, and traced."""
    verdicts = {mutant.name: _verdict_on(mutant, reference, candidate) for mutant in mutants}
    if near := [name for name, one in verdicts.items() if one is not None and remeasure.is_near_bound(one)]:
        [more] = remeasure.measure_again([job], console, workers["reference"])
        remeasured = remeasure.with_more_runs(reference, more)
        verdicts |= {m.name: _verdict_on(m, remeasured, candidate) for m in mutants if m.name in near}
    order = list(reference.tensors)
    is_pair = files.read_job(job).pair is not None
    trials = []
    for mutant in mutants:
        if (verdict := verdicts[mutant.name]) is None:
            trials.append(Trial(mutant, True, candidate.mutants[mutant.name].raised or "", "raised", None))
        else:
            found = trace.summary(records, traced.mutants[mutant.name], reference.facts.bucket_slack)
            trials.append(_trial(mutant, verdict, order, found, is_pair))
    return trials


def _verdict_on(mutant: Mutant, reference: ReferenceResult, candidate: CandidateResult) -> Verdict | None:
    """Return the verdict on a mutant; None if the port did not get through the step with it."""
    measured = candidate.mutants[mutant.name]
    if measured.raised is not None:
        return None
    tokens = measured.tokens if mutant.tokenizer else candidate.tokens  # what is right is not judged again
    of_port = {known.name: getattr(measured, known.name) for known in fields(PortResult)}
    return judge(reference, CandidateResult(**{**of_port, "tokens": tokens}))


def _trial(mutant: Mutant, verdict: Verdict, order: list[str], found: trace.OperationTrace, is_pair: bool) -> Trial:
    if precision.is_judged((mutant.dtype,)):
        precision.judge_operations(verdict, found)
    culprit = first_at_fault(verdict, order)
    if culprit is None:
        return Trial(mutant, False, "", "", None)
    compared = verdict.compared_by(culprit.verdict)
    margins = {comparison.name: comparison.margin for comparison in compared}
    label = f"{culprit.verdict}:{culprit.name}" if culprit.verdict in OF_RECOMPUTING else culprit.name
    if is_pair and TensorName.parse(culprit.name).kind == "gradient" and (first := trace.first_of(found, culprit)):
        label = first.name  # as the headline has it
    operation = None
    no_way_back = bool(mutant.operation) and trace.lacks_gradients(verdict)
    if culprit.verdict == "precision" or trace.is_wanted(verdict) or no_way_back:
        faulty = found.faulty
        if culprit.verdict == "precision":
            faulty = [one for one in faulty if one.name == culprit.name]
            margins[culprit.name] = faulty[0].margin
        operation = f"{faulty[0].name} {faulty[0].where}" if faulty else ""
    return Trial(mutant, True, label, culprit.verdict, margins.get(culprit.name), operation)


def _to_be_named(mutant: Mutant) -> str:
    return "nothing" if mutant.harmless else " and ".join(filter(None, (mutant.culprit, mutant.operation)))


def print_trials(trials: Trials, console: Console) -> None:
    """Print a row for each mutant, then the score and the sentence on parts without a fault."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("mutant", "caught", "by", "named", "wrong by itself"):
        table.add_column(title, overflow="fold")
    table.add_column("error / bound", justify="right")
    for trial in trials:
        outcome = "harmless" if trial.mutant.harmless and not trial.caught else "yes" if trial.caught else "NO"
        margin = "" if trial.margin is None else f"{trial.margin:.1e}"
        name = short_name(trial.culprit) if trial.culprit else trial.mutant.harmless or trial.mutant.unreached_reason
        style = "" if trial.passed else "red"
        if trial.caught and not trial.passed:
            name += f", not {_to_be_named(trial.mutant)}"
        name += "; it moves no loss or gradient of the step" if trial.is_still and trial.caught else ""
        named, _, where = (trial.operation or "").partition(" ")
        operation = Dotted(f"{short_name(named)} {where}".strip())
        table.add_row(trial.mutant.name, outcome, trial.verdict, Dotted(name), operation, margin, style=style)
    console.print(table)
    faults = [trial for trial in trials if not trial.mutant.harmless]
    harmless = [trial for trial in trials if trial.mutant.harmless]
    console.print(
        f"{sum(t.caught for t in faults)} of {len(faults)} faults caught, {sum(t.passed for t in faults)} named; "
        f"{sum(t.passed for t in harmless)} of {len(harmless)} harmless changes passed; "
        f"of {sum(t.mutant.operation != '' for t in faults)} the operation is known and was to be named, too",
        highlight=False,
    )
    if trials.untried:
        console.print(trials.untried, highlight=False)
