"""Run the gate of a run, and list the differences between the run and the gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from toolkit.data.batches import collate
from toolkit.errors import Inconclusive, ParityDrift
from toolkit.finetune.assembly import AssembledRun, reference_python
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import hub_origin
from toolkit.run_folder.folder import REPORT
from toolkit.training.schedule import Schedule

if TYPE_CHECKING:
    from toolkit.parity import GateRequest


def pass_gate(
    recipe: Recipe,
    job: AssembledRun,
    skip_parity: str | None,
    folder: Path,
    device: str,
    console: Console,
    processes: int = 1,
    *,
    verbose: bool = False,
) -> str | None:
    """Run the parity gate on this run's model, weights and first examples.

    Args:
        recipe: recipe of the run.
        job: parts of the run.
        skip_parity: reason for skipping the gate, or None to run it.
        folder: run folder, for the report.
        device: device of the run.
        console: console for messages.
        processes: number of processes that will train together.
        verbose: whether to print the table of a gate that passes, too.

    Returns:
        The verdict as a line; None if the gate is skipped.

    Raises:
        ParityDrift: the port differs from the reference.
        Inconclusive: the gate could not decide.
    """
    if skip_parity is not None:
        console.print(f"parity skipped: {skip_parity}", highlight=False)
        return None
    from toolkit.parity import remove_report, run_gate

    parity = folder / REPORT
    remove_report(parity)
    with scratch_folder("tokenizer-") as scratch:
        request = gate_request(recipe, job, device, scratch, processes)
        report = run_gate(request, parity, console, brief=not verbose)
    if report.exit_status == Inconclusive.exit_status:
        raise Inconclusive(f"{report.summary()}; no training; see {parity / 'parity.json'}")
    if not report.passed:
        raise ParityDrift(f"{report.summary()}; no training; see {parity / 'parity.json'}")
    return report.summary()


def first_examples(job: AssembledRun, count: int) -> list[dict[str, np.ndarray]]:
    """Return the first examples of training.

    Args:
        job: data, tokenizer and model of the run.
        count: number of examples.
    """
    return [job.prepared_data.train[index] for index in range(min(count, len(job.prepared_data.train)))]


def gate_request(recipe: Recipe, job: AssembledRun, device: str, scratch: Path, processes: int = 1) -> GateRequest:
    """Return the gate's request: the run's own configuration, weights, first training examples and tokenizer.

    The gate adds synthetic examples that cover cases which these may miss.

    Args:
        recipe: recipe of the run.
        job: parts of the run.
        device: device of the run, `cpu` or `gpu`.
        scratch: folder for the tokenizer's file; it must outlive the gate.
        processes: number of processes that will train together.
    """
    from toolkit.finetune.model_config import head_of, port_settings
    from toolkit.parity import GateRequest, TrainingSettings, dtypes_of, tokenizer_in

    gate_settings, train, class_weights = recipe.parity, recipe.train, job.prepared_data.class_weights
    job.tokenizer.save(scratch)

    training = TrainingSettings(
        max_steps=Schedule.of(recipe, len(job.prepared_data.train), processes).max_steps,
        batch_size=train.batch_size,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        learning_rate=train.learning_rate,
        lr_scheduler=train.lr_scheduler,
        warmup_ratio=train.warmup_ratio,
        weight_decay=train.weight_decay,
        optimizer=train.optimizer,
        adam_beta1=train.adam_beta1,
        adam_beta2=train.adam_beta2,
        adam_epsilon=train.adam_epsilon,
        momentum=train.momentum,
        max_grad_norm=train.max_grad_norm,
    )
    return GateRequest(
        model=recipe.model.name,
        head=head_of(recipe),
        config=job.config.to_hf(),
        weights=job.first_weights,
        lora=None if job.lora is None else asdict(job.lora),
        batch=collate(first_examples(job, gate_settings.examples)),
        dtypes=dtypes_of(gate_settings.dtype, train.precision),
        device=device if gate_settings.device == "auto" else gate_settings.device,
        tokenizer=tokenizer_in(
            recipe.model.name, scratch, job.texts, recipe.data.max_length, offsets=job.prepared_data.offsets
        ),
        seed=recipe.seed,
        port={**port_settings(recipe), "recompute": bool(train.recompute)},
        training=training,
        labels=collate(first_examples(job, training.examples_of_update)),
        class_weights=None if class_weights is None else tuple(class_weights.tolist()),
        label_smoothing=train.label_smoothing or 0.0,
        threads=recipe.runtime.threads,
        not_run=tuple(_not_run(recipe, device, processes)),
        checkpoint=None if job.checkpoint is None else str(job.checkpoint),
        checkpoint_config=job.stored_config.to_hf() if job.checkpoint is not None and job.fit.cut else None,
        length_notes=job.fit.notes,
        length=gate_settings.length,
        max_memory=gate_settings.max_memory,
        origin=hub_origin(recipe, "model"),
        reference_python=reference_python(recipe),
        widened=True,
    )


def _not_run(recipe: Recipe, device: str, processes: int) -> Iterator[str]:
    """Yield the differences between the run and the gate."""
    train, gate_device = recipe.train, recipe.parity.device
    if train.sharding is not None:
        yield f"it splits the optimizer's state over processes (train.sharding {train.sharding})"
    if train.token_dropout:
        yield f"it replaces {train.token_dropout:g} of the tokens of its texts (train.token_dropout)"
    if processes > 1:
        yield f"{processes} processes train together, whose gradients are summed"
    if gate_device not in ("auto", device):
        yield f"it is on {device}, the gate on {gate_device} (parity.device)"
