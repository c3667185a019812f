"""Fine-tuning: prove the port equal, then train, evaluate and save. What one `toolkit finetune` does, in order.

Nothing but the ledger and the gate's report is written before the gate has passed. After that the run folder fills up:

    recipe.yaml       the recipe with every default, as it was run      versions.json   what it ran on
    identity.json     the SHA-256s of its data, tokenizer and first weights
    metrics.jsonl     a line per step and per evaluation                metrics.csv     the same as a table
    parity/           the gate's report; why it was skipped            checkpoints/    only while training
    model/            the best weights, as transformers reads them      README.md       the model card
    report.html       all of it on a page that a browser shows     predictions-test.csv, predictions-validation.csv
    samples.md        of a language model: samples of its text          adapter.safetensors    with train.lora
    metrics.json      the final numbers; written last: a folder that has it is a finished run
    .toolkit-run.json the ledger, by which the folder is known for a run's (:mod:`toolkit.files.ownership`); written
    first
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

from models import collector, families
from toolkit.data.source_names import check_source
from toolkit.errors import UserError
from toolkit.files import strict_json, whole
from toolkit.files.digest import digest
from toolkit.files.whole import write_text
from toolkit.finetune.adapter_file import ADAPTER, write_adapter
from toolkit.finetune.assembly import Job, assemble, reference_python
from toolkit.finetune.backward import settle_backward
from toolkit.finetune.card import write_card
from toolkit.finetune.gate import pass_gate
from toolkit.finetune.identity import check_identity, write_identity
from toolkit.finetune.judged import see_judged
from toolkit.finetune.memory import missing_memory
from toolkit.finetune.passed_gate import handed_over, to_hand_over, verdict_of
from toolkit.finetune.report.page import PAGE, write_report
from toolkit.machine import interruption, runtime
from toolkit.machine.disk import missing_room, size_of
from toolkit.recipe.recipe import Recipe, settled
from toolkit.recipe.revisions import hub_origin, settle_commits
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import differing_keys, occupied, record_start
from toolkit.run_folder.predictions import predictions_file, write_predictions
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.tracking import Tracker, check_trackers
from toolkit.tasks import task_of
from toolkit.tasks.interface import Run
from toolkit.tasks.metrics import COUNTS
from toolkit.terminal.console import LiteralConsole
from toolkit.terminal.progress import format_number
from toolkit.terminal.quiet import silence_startup
from toolkit.training import ranks
from toolkit.training.schedule import Schedule

if TYPE_CHECKING:
    from toolkit.tasks.interface import Prepared, Task
    from toolkit.training.trainer import Finetuner

#: Beginnings of the flags that follow from how many processes share the cores.
THREADS = ("flags.OMP_NUM_THREADS", "flags.FLAGS_paddle_num_threads")

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
    if not runtime.is_first_process():
        return _follow(recipe)
    with occupied(recipe) as folder:
        return _finetune_in(folder, recipe, skip_parity, console)


def prove(folder: Path, recipe: Recipe, skip_parity: str | None, console: Console, processes: int) -> dict[str, Any]:
    """All that comes before training, for so many processes that are started after it.

    Returns:
        What the first of them is to be told (:mod:`toolkit.finetune.passed_gate`).

    Raises:
        As :func:`finetune`.
    """
    device = _set_up(recipe, processes)
    job, verdict = _prepare(folder, recipe, skip_parity, device, console, None, processes)
    begun_with = Checkpoints(folder / "checkpoints").begun_with() or processes
    return to_hand_over(recipe, job, folder, device, begun_with, verdict)


def _set_up(recipe: Recipe, processes: int) -> str:
    """Import Paddle on the recipe's device; returns which that is."""
    silence_startup()
    device = runtime.configure(recipe.runtime.device, recipe.runtime.threads)
    check_device(recipe, device, processes)
    return device


def _prepare(
    folder: Path,
    recipe: Recipe,
    skip_parity: str | None,
    device: str,
    console: Console,
    told: Mapping[str, Any] | None,
    processes: int,
) -> tuple[Job, str | None]:
    """Load what the run is made of, and pass the gate; returns that, and the gate's verdict (None: skipped).

    Args:
        told: of the process that has started this one; it has said all that is said here.
    """
    loud, console = console, console if told is None else LiteralConsole(quiet=True)
    if skip_parity is None:
        reference_python(recipe)
    runtime.seed_everything(recipe.seed)
    check_source(recipe, task_of(recipe).CORPORA)
    recipe.commits.update(told["commits"] if told else {})
    notes = [] if told else settle_commits(recipe, folder)
    job = assemble(recipe)
    backward = settle_backward(recipe, job, folder, device, processes, told["backward"] if told else None)
    if not told:
        _describe(job, recipe, [*notes, *job.notes, *filter(None, [backward])], device, console)
    if note := check_identity(recipe, folder, job.identity):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)
    begun_with = Checkpoints(folder / "checkpoints").begun_with() or processes
    check_room(recipe, folder, job, begun_with)
    if lacking := missing_memory(recipe, job.config, job.fit.length, device):
        console.print(f"note   {lacking}", highlight=False, soft_wrap=True)
    if skip_parity is None and (verdict := verdict_of(told, recipe, job, folder, device, begun_with)):
        return job, verdict
    if skip_parity is None:
        console = loud
    return job, pass_gate(recipe, job, skip_parity, folder, device, console, begun_with)


def _follow(recipe: Recipe) -> Path:
    """What each process but the first does: train and measure with it. It writes nothing."""
    _set_up(recipe, runtime.processes())
    ranks.join()
    told = ranks.await_first()
    recipe.commits.update(told["commits"])
    recipe.model.backward = told["backward"]
    runtime.seed_everything(recipe.seed)
    job = assemble(recipe)
    _agree(recipe, job)
    folder, console = recipe.output_dir, LiteralConsole(quiet=True)
    model = load_model(recipe, job)
    job.let_go()
    trainer = make_trainer(recipe, folder, job.task, model, console, job.prepared, told["begun_with"])
    trainer.fit(Path(told["resume_from"]) if told["resume_from"] else None)
    measure_best(trainer, job.prepared)
    return folder


def _agree(recipe: Recipe, job: Job) -> None:
    """See that all processes were given the same to train on.

    Raises:
        UserError: they were not.
    """
    ranks.agree("the keys of the recipe", digest(recipe.model_dump_json()))
    made_of = {key: job.identity[key] for key in ("splits", "tokenizer", "checkpoint")}
    ranks.agree("the data, tokenizer or starting checkpoint", digest(json.dumps(made_of, sort_keys=True)))


def _finetune_in(folder: Path, recipe: Recipe, skip_parity: str | None, console: Console) -> Path:
    told = handed_over()
    device = _set_up(recipe, runtime.processes())
    ranks.join()
    job, verdict = _prepare(folder, recipe, skip_parity, device, console, told, runtime.processes())
    resume_from = open_run(recipe, folder, console)
    write_identity(folder, job.identity)
    begun = checkpoint.read_state(resume_from) if resume_from else {}
    last_step, begun_with = begun.get("step", 0), begun.get("processes", 1 if begun else runtime.processes())
    ranks.announce(
        {
            "commits": dict(recipe.commits),
            "backward": recipe.model.backward,
            "resume_from": resume_from and str(resume_from.absolute()),
            "begun_with": begun_with,
        }
    )
    _agree(recipe, job)
    model = load_model(recipe, job)
    trainer = make_trainer(recipe, folder, job.task, model, console, job.prepared, begun_with)
    if verdict is not None:
        see_judged(recipe, job, trainer, folder, console)
    job.let_go()
    record_start(folder, last_step, verdict, skip_parity)

    def tell(text: str) -> None:
        console.print(f"note   {text}", highlight=False, soft_wrap=True)

    trainer.tracker = Tracker(folder, recipe, last_step, tell, trainer.schedule.eval_steps, begun.get("left", False))
    exit_status = 1
    try:
        trainer.fit(resume_from)
        results = finish(recipe, folder, job, trainer)
        trainer.tracker.summarize(results)
        exit_status = 0
    except KeyboardInterrupt:
        _say_what_is_saved(trainer, console)
        raise
    finally:
        trainer.tracker.close(exit_status)
    _show_results(results, folder, console)
    next_command = job.task.DESCRIPTION.command(folder)
    console.print(f"next: {next_command}", highlight=False, soft_wrap=True)
    return folder


# -- before the gate ------------------------------------------------------------------------------------------------


def check_room(recipe: Recipe, folder: Path, job: Job, processes: int = 1) -> None:
    """See that the disk has room for the checkpoints of a run. A third one is written before the oldest is removed.

    Args:
        processes: that the run was begun with.

    Raises:
        UserError: it has not, with how much it takes.
    """
    weights, trained = sum(value.nbytes for value in job.weights.values()), 4 * job.trained
    at_once = min(3, Schedule.of(recipe, len(job.prepared.train), processes).max_steps)
    checkpoint_size, best_size = 3 * trained, trained  # the optimizer holds two moments of each weight
    needed = at_once * (checkpoint_size + best_size) + weights
    if lacking := missing_room(folder, needed - size_of(folder / "checkpoints")):
        raise recipe.error("train.output_dir", f"{folder}: the run {lacking}; make room, or name another folder")


def check_device(recipe: Recipe, device: str, processes: int) -> None:
    """See that the run's sharding works where it runs, with so many processes.

    Raises:
        UserError: what would have to be otherwise.
    """
    if recipe.train.sharding is None:
        return
    if device == "cpu":
        raise recipe.error("train.sharding", "needs several GPUs; on this CPU set null")
    if processes < 2:
        raise recipe.error(
            "train.sharding", "needs a process for each GPU: toolkit finetune RECIPE --gpus 0,1; on one GPU set null"
        )
    if (recipe.output_dir / "checkpoints").exists():
        folder = recipe.output_dir
        raise recipe.error("train.sharding", f"{folder}: such a run cannot be resumed; choose another folder")


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
        if note := note_on_processes(found):
            console.print(f"note   {note}", highlight=False, soft_wrap=True)
            changed = [key for key in changed if not key.startswith(THREADS)]
        if changed:
            console.print(
                f"note   {'; '.join(changed[:3])}: the result may differ in its last digits from an uninterrupted run",
                highlight=False,
            )
    write_text(folder / "recipe.yaml", recipe.to_yaml())
    write_text(versions, json.dumps(here, indent=1) + "\n")
    return found


def note_on_processes(saved: Path) -> str | None:
    """What the user should know who goes on from a checkpoint with another number of processes."""
    state = checkpoint.read_state(saved)
    before, now = len(state.get("random_states", [None])), runtime.processes()
    if before == now:
        return None
    return (
        f"saved by {before} processes and resumed with {now}: a step has the same examples as before, but what is "
        "drawn at random (dropout, LSH) is not what it would have been"
    )


def load_model(recipe: Recipe, job: Job) -> Any:
    """The port with the job's first weights, its class weights, and the constants that the gate compared it with."""
    from safetensors.numpy import load_file

    from models.port.adapter import adapt
    from toolkit.finetune.model_config import model_class
    from toolkit.parity import CONSTANTS

    model = model_class(recipe)(job.config)
    if job.lora is not None:
        adapt(model, job.lora)
    families.part(recipe.model.name, "weights").load(model, job.first_weights)
    model.class_weights = job.prepared.class_weights
    if job.unreached_rows is not None:
        model.unreached_rows = job.unreached_rows
    if (constants := recipe.output_dir / "parity" / CONSTANTS).is_file():
        with reading(constants, "remove it, and run the same command again"):
            model.hold_constants(load_file(constants))
    return model


def make_trainer(
    recipe: Recipe,
    folder: Path,
    task: Task,
    model: Any,
    console: Console,
    prepared: Prepared | None = None,
    begun_with: int | None = None,
) -> Finetuner:
    """The trainer of a run that was begun with so many processes; without `prepared` it can measure only."""
    with collector.paused():
        from toolkit.training.trainer import Finetuner

    return Finetuner(
        model,
        recipe,
        folder,
        task,
        console,
        prepared.train if prepared else None,
        prepared.validation if prepared else None,
        begun_with=begun_with,
    )


def _say_what_is_saved(trainer: Finetuner, console: Console) -> None:
    step = trainer.checkpoints.last_step()
    if step is not None:
        console.print(f"saved at step {step}; the same command resumes it", highlight=False)


def measure_best(
    trainer: Finetuner, prepared: Prepared, folder: Path | None = None
) -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, ...] | None]]:
    """Measure the best model, all processes together; returns split -> metrics, and split -> what was kept of it.

    Args:
        folder: where an adapter is left, before it becomes part of the weights; None of all processes but the first.
    """
    from models.port.adapter import merge

    trainer.use_best_weights()
    if trainer.model.adapter is not None:
        if folder is not None:
            write_adapter(trainer.model, folder / ADAPTER)
        merge(trainer.model)  # so that what is measured is what is saved
        trainer.best.metrics, trainer.best_outputs = {}, None
    # An evaluation is repeatable (Finetuner.measure), so that of the best step need not be made again. A run that
    # was resumed after it has its numbers alone.
    outputs: dict[str, tuple[np.ndarray, ...] | None] = {"validation": trainer.best_outputs}
    again = None
    if trainer.best.metrics is None or trainer.best_outputs is None:
        again = trainer.measure(prepared.validation, "validation")
        outputs["validation"] = trainer.outputs
    measured: dict[str, Any] = {"validation": trainer.best.metrics or again}
    if prepared.test is not None:
        measured["test"] = trainer.measure(prepared.test, "test")
        outputs["test"] = trainer.outputs
    return measured, outputs


def finish(recipe: Recipe, folder: Path, job: Job, trainer: Finetuner) -> dict[str, Any]:
    """Measure and save the best model, write its card, and close the run; returns the content of metrics.json."""
    prepared = job.prepared
    measured, outputs = measure_best(trainer, prepared, folder)
    trainer.shared = False  # what follows the first process does alone
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
        **_class_weights(prepared),
        "parameters": job.parameters,
        "hardware": runtime.hardware(),
    }

    def fill(model_folder: Path) -> None:
        trainer.model.save_pretrained(model_folder)
        job.tokenizer.save(model_folder, recipe.data.max_length)

    whole.write_folder(folder / "model", fill, manifest=False)
    run = Run(folder, recipe, job.task, job.tokenizer, trainer.model, prepared.label_names, job.fit.length)
    trainer.model.eval()
    write_split_predictions(run, job.splits, prepared, outputs)
    job.task.write_artifacts(run, trainer, prepared, trainer.console)
    write_card(run, results)
    write_report(recipe, folder, results)
    with interruption.held():  # from here on the run is finished, and no signal says otherwise
        write_text(folder / "metrics.json", strict_json.dumps(results, indent=1) + "\n")
        interruption.settle(0)
    trainer.checkpoints.remove()
    return results


def _class_weights(prepared: Prepared) -> dict[str, dict[str, float]]:
    """How much each label counted in the loss that trained, by its name; nothing where all did alike."""
    if prepared.class_weights is None:
        return {}
    return {"class_weights": dict(zip(settled(prepared.label_names), prepared.class_weights.tolist(), strict=True))}


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
