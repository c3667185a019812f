"""Fine-tuning: prove the port equal, then train, evaluate and save. What one `toolkit finetune` does, in order.

Nothing but the gate's report is written before the gate has passed. After that the run folder fills up:

    recipe.yaml       the recipe with every default, as it was run      versions.json   what it ran on
    identity.json     the SHA-256s of its data, tokenizer and first weights
    metrics.jsonl     a line per step and per evaluation                metrics.csv     the same as a table
    parity/           the gate's report; why it was skipped            checkpoints/    only while training
    model/            the best weights, as transformers reads them      README.md       the model card
    report.html       all of it on a page that a browser shows     predictions-test.csv, predictions-validation.csv
    samples.md        of a language model: samples of its text
    metrics.json      the final numbers; written last: a folder that has it is a finished run
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from models import families
from toolkit import checkpoint, runtime, strict_json
from toolkit.assembly import Job, assemble, reference_python
from toolkit.card import write_card
from toolkit.checkpoint import Checkpoints, write_text
from toolkit.console import LiteralConsole
from toolkit.disk import missing_room, size_of
from toolkit.errors import UserError
from toolkit.identity import check_identity, write_identity
from toolkit.metrics import COUNTS
from toolkit.predictions import predictions_file, write_predictions
from toolkit.progress import format_number
from toolkit.quiet import silence_startup
from toolkit.recipe import Recipe
from toolkit.report.page import PAGE, write_report
from toolkit.revisions import hub_origin, settle_commits
from toolkit.run_files import read_json, reading
from toolkit.run_folder import differing_keys, occupied, record_start
from toolkit.run_gate import pass_gate
from toolkit.schedule import Schedule
from toolkit.scratch import scratch_folder
from toolkit.sources import check_source
from toolkit.tasks import Run, task_of
from toolkit.tracking import Tracker, check_trackers

if TYPE_CHECKING:
    from toolkit.tasks import Prepared, Task
    from toolkit.trainer import Finetuner

#: A table of results has a column for each metric, up to so many.
MOST_COLUMNS = 4


def finetune(recipe: Recipe, skip_parity: str | None, console: Console) -> Path:
    """Run a recipe, or resume its interrupted run.

    Args:
        recipe: a checked recipe.
        skip_parity: why the gate is not run, or None to run it.
        console: where to say what happens.

    Returns:
        The run folder.

    Raises:
        UserError: the data, the weights or the run folder do not fit the recipe.
        ParityDrift: the port differs from the reference; only the report was written.
        Inconclusive: the gate could not decide.
        KeyboardInterrupt: Ctrl-C; the same call resumes the run.
    """
    check_trackers(recipe)
    if not runtime.is_first_process():  # what all processes write is the same: the others' goes where nobody looks
        with scratch_folder("toolkit-") as folder:
            return _finetune_in(folder, recipe, "the first process runs it", LiteralConsole(quiet=True))
    with occupied(recipe) as folder:
        return _finetune_in(folder, recipe, skip_parity, console)


def _finetune_in(folder: Path, recipe: Recipe, skip_parity: str | None, console: Console) -> Path:
    silence_startup()
    device = runtime.configure(recipe.runtime.device, recipe.runtime.threads)
    check_device(recipe, device)
    if skip_parity is None:
        reference_python(recipe)
    runtime.seed_everything(recipe.seed)
    check_source(recipe, task_of(recipe).CORPORA)
    notes = settle_commits(recipe, folder)
    job = assemble(recipe)
    _describe(job, recipe, [*notes, *job.notes], device, console)
    if note := check_identity(recipe, folder, job.identity):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)
    check_room(recipe, folder, job)
    verdict = pass_gate(recipe, job, skip_parity, folder, device, console)
    resume_from = open_run(recipe, folder, console)
    write_identity(folder, job.identity)
    last_step = checkpoint.read_state(resume_from)["step"] if resume_from else 0
    trainer = make_trainer(recipe, folder, job.task, load_model(recipe, job), console, job.prepared)
    record_start(folder, last_step, verdict, skip_parity)
    trainer.tracker = Tracker(folder, recipe, last_step, lambda text: console.print(f"note   {text}", soft_wrap=True))
    exit_status = 1
    try:
        _fit(trainer, resume_from, console)
        results = finish(recipe, folder, job, trainer)
        trainer.tracker.summarize(results)
        exit_status = 0
    finally:
        trainer.tracker.close(exit_status)
    _show_results(results, folder, console)
    next_command = job.task.DESCRIPTION.command(folder)
    console.print(f"next: {next_command}", highlight=False, soft_wrap=True)
    return folder


# -- before the gate ------------------------------------------------------------------------------------------------


def check_room(recipe: Recipe, folder: Path, job: Job) -> None:
    """See that the disk has room for the checkpoints of a run. A third one is written before the oldest is removed.

    Raises:
        UserError: it has not, with how much it takes.
    """
    weights = sum(value.nbytes for value in job.weights.values())
    at_once = min(3, Schedule.of(recipe, len(job.prepared.train)).max_steps)
    checkpoint_size, best_size = 3 * weights, weights  # the optimizer holds two moments of each weight
    needed = at_once * (checkpoint_size + best_size) + weights
    if lacking := missing_room(folder, needed - size_of(folder / "checkpoints")):
        raise recipe.error("train.output_dir", f"{folder}: the run {lacking}; make room, or name another folder")


def check_device(recipe: Recipe, device: str) -> None:
    """See that the run's sharding works where it runs.

    Raises:
        UserError: what would have to be otherwise.
    """
    if runtime.processes() > 1 and (recipe.output_dir / "checkpoints").exists():
        raise recipe.error("train.output_dir", "a run of several processes cannot be resumed; choose another folder")
    if recipe.train.sharding is None:
        return
    if device == "cpu":
        raise recipe.error("train.sharding", "needs several GPUs; on this CPU set null")
    if runtime.processes() < 2:
        raise recipe.error(
            "train.sharding",
            "needs a process for each GPU: python -m paddle.distributed.launch --gpus 0,1 .venv/bin/toolkit finetune "
            "RECIPE; on one GPU set null",
        )


def _describe(job: Job, recipe: Recipe, notes: Sequence[str], device: str, console: Console) -> None:
    """Print a line each on the data, the model and what came from the hub, and the notes on the recipe and the data."""
    console.print(f"data   {job.prepared.summary}", highlight=False, soft_wrap=True)
    layers = job.config.attn_layers if hasattr(job.config, "attn_layers") else range(job.config.n_layer)
    origin = (
        "new weights" if len(job.new_weights) == len(job.weights) else f"new: {', '.join(job.new_weights) or 'none'}"
    )
    console.print(
        f"model  {len(layers)} layers, {job.parameters:,} parameters ({origin}), on {device}",
        highlight=False,
    )
    for section in recipe.commits:
        console.print(f"hub    {hub_origin(recipe, section)}", highlight=False, soft_wrap=True)
    if device == "cpu" and recipe.train.precision == "bfloat16":
        notes = [*notes, "train.precision bfloat16: a CPU rounds as a GPU does, and is slower than in float32"]
    for note in (*recipe.notes, *notes):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)


# -- training -------------------------------------------------------------------------------------------------------


def open_run(recipe: Recipe, folder: Path, console: Console) -> Path | None:
    """Write what identifies the run; returns the checkpoint to resume from, or None to start."""
    folder.mkdir(parents=True, exist_ok=True)
    here = {**runtime.versions(), "flags": runtime.flags()}
    versions = folder / "versions.json"
    found = Checkpoints(folder / "checkpoints").newest(
        lambda damage: console.print(f"skipping {damage}", highlight=False)
    )
    if found is not None:
        step = checkpoint.read_state(found)["step"]
        console.print(f"resuming {folder} after step {step}", highlight=False)
        before = None
        with contextlib.suppress(UserError):  # it is written anew below
            before = json.dumps(read_json(versions, ""))
        changed = differing_keys(before, json.dumps(here)) if before else []
        if changed:
            console.print(
                f"note   {'; '.join(changed[:3])}: the result may differ in its last digits from an uninterrupted run",
                highlight=False,
            )
    write_text(folder / "recipe.yaml", recipe.to_yaml())
    write_text(versions, json.dumps(here, indent=1) + "\n")
    return found


def load_model(recipe: Recipe, job: Job) -> Any:
    """The port with the job's first weights, and the constants that the gate compared it with."""
    from safetensors.numpy import load_file

    from toolkit.model_config import model_class
    from toolkit.parity import CONSTANTS

    model = model_class(recipe)(job.config)
    families.part(recipe.model.name, "weights").load(model, job.weights)
    if job.unreached_rows is not None:
        model.unreached_rows = job.unreached_rows
    if (constants := recipe.output_dir / "parity" / CONSTANTS).is_file():
        with reading(constants, "remove it, and run the same command again"):
            model.hold_constants(load_file(constants))
    return model


def make_trainer(
    recipe: Recipe, folder: Path, task: Task, model: Any, console: Console, prepared: Prepared | None = None
) -> Finetuner:
    """The trainer of a run; without `prepared` it can measure only."""
    from toolkit.trainer import Finetuner

    return Finetuner(
        model,
        recipe,
        folder,
        task,
        console,
        prepared.train if prepared else None,
        prepared.validation if prepared else None,
    )


def _fit(trainer: Finetuner, resume_from: Path | None, console: Console) -> None:
    try:
        trainer.fit(resume_from)
    except KeyboardInterrupt:
        saved = trainer.checkpoints.newest(lambda damage: None)
        if saved is not None:
            step = checkpoint.read_state(saved)["step"]
            console.print(f"saved at step {step}; the same command resumes it", highlight=False)
        raise


def finish(recipe: Recipe, folder: Path, job: Job, trainer: Finetuner) -> dict[str, Any]:
    """Measure and save the best model, write its card, and close the run; returns the content of metrics.json."""
    trainer.use_best_weights()
    prepared = job.prepared
    # An evaluation is repeatable (Finetuner.measure), so that of the best step need not be made again. A run that
    # was resumed after it has its numbers alone.
    outputs, again = {"validation": trainer.best_outputs}, None
    if trainer.best.metrics is None or trainer.best_outputs is None:
        again = trainer.measure(prepared.validation, "validation")
        outputs["validation"] = trainer.outputs
    measured = {"validation": trainer.best.metrics or again}
    if prepared.test is not None:
        measured["test"] = trainer.measure(prepared.test, "test")
        outputs["test"] = trainer.outputs
    results = {
        **measured,
        "best": {"metric": recipe.train.save_best, "value": trainer.best.best_value, "step": trainer.best.best_step},
        "training": {
            "steps": trainer.last_step,
            "epochs": round(trainer.last_step / trainer.schedule.steps_per_epoch, 4),
            "stopped_early": trainer.best.stopped,
            "seconds": round(trainer.seconds, 1),
            "schedule": asdict(trainer.schedule),
        },
        "examples": prepared.sizes,
        **({"baseline": prepared.baseline} if prepared.baseline else {}),
        "parameters": job.parameters,
        "hardware": runtime.hardware(),
    }

    def fill(model_folder: Path) -> None:
        trainer.model.save_pretrained(model_folder)
        job.tokenizer.save(model_folder, recipe.data.max_length)

    checkpoint.write_folder(folder / "model", fill, manifest=False)
    run = Run(folder, recipe, job.task, job.tokenizer, trainer.model, prepared.label_names, job.fit.length)
    trainer.model.eval()
    write_split_predictions(run, job.splits, prepared, outputs)
    job.task.write_artifacts(run, trainer, prepared, trainer.console)
    write_card(run, results)
    write_report(recipe, folder, results)
    write_text(folder / "metrics.json", strict_json.dumps(results, indent=1) + "\n")
    trainer.checkpoints.remove()
    return results


def write_split_predictions(
    run: Run, splits: Mapping[str, Any], prepared: Prepared, outputs: Mapping[str, tuple[np.ndarray, ...] | None]
) -> None:
    """Write what the best model said of each example, a file for each split that was measured.

    Args:
        splits: of the task's ``load_splits``.
        outputs: split -> what the task's ``outputs`` kept of it.
    """
    for split, kept in outputs.items():
        if kept is not None:
            rows = run.task.predictions(run, splits[split], getattr(prepared, split), kept)
            write_predictions(predictions_file(run.folder, split), rows)


def metrics_table(results: dict[str, dict[str, float]]) -> Table:
    """Split -> metric -> number, as a table; with many metrics, such as one for each control code, a row for each."""
    names = list(dict.fromkeys(name for numbers in results.values() for name in numbers))
    if len(names) > MOST_COLUMNS:
        table = Table("metric")
        for split in results:
            table.add_column(split, justify="right")
        for name in names:
            table.add_row(name, *(_figure(name, numbers) for numbers in results.values()))
        return table
    table = Table("split")
    for name in names:
        table.add_column(name, justify="right")
    for split, numbers in results.items():
        table.add_row(split, *(_figure(name, numbers) for name in names))
    return table


def _figure(name: str, numbers: Mapping[str, float]) -> str:
    """A metric of a split; a count without decimals, nothing where the split lacks it."""
    if name not in numbers:
        return ""
    return f"{numbers[name]:,.0f}" if name in COUNTS else f"{numbers[name]:.4f}"


def _show_results(results: dict[str, Any], folder: Path, console: Console) -> None:
    """A table of the best model's numbers, and what to do with it."""
    splits = [name for name in ("validation", "test") if name in results]
    best = results["best"]
    console.print(f"best model (step {best['step']}, by validation {best['metric']})", highlight=False)
    console.print(metrics_table({split: results[split] for split in splits}))
    for split, numbers in results.get("baseline", {}).items():
        listed = ", ".join(f"{name} {format_number(value)}" for name, value in numbers.items() if name not in COUNTS)
        console.print(f"baseline on {split}: {listed}", highlight=False)
    console.print(f"report: {folder / PAGE}", highlight=False, soft_wrap=True)
    console.print(
        f"trained {results['training']['seconds']:.4g} s; run folder: {folder}", highlight=False, soft_wrap=True
    )
