"""End a run: measure and save the best model, write its predictions, card and page, and show a table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from models.files.tensor_file import write_tensors
from models.port.weights import values_of
from toolkit.files import strict_json, whole
from toolkit.files.whole import appearing, write_text
from toolkit.finetune.assembly import Assembled
from toolkit.finetune.baselines import compared, overfitted
from toolkit.finetune.card import write_card
from toolkit.finetune.data_facts import data_facts
from toolkit.finetune.model import save_model
from toolkit.finetune.report.page import PAGE, write_report
from toolkit.machine import interruption, runtime
from toolkit.machine.disk import writing
from toolkit.recipe.recipe import Recipe, settled
from toolkit.run_folder.predictions import predictions_file, write_predictions
from toolkit.run_folder.tracking import Tracker, read_metrics
from toolkit.tasks import task_of
from toolkit.tasks.classification.calibration import describe_calibration
from toolkit.tasks.interface import Run
from toolkit.tasks.metrics import COUNTS

if TYPE_CHECKING:
    from toolkit.tasks.interface import PreparedData
    from toolkit.training.trainer import Finetuner


#: In the run folder with ``train.lora``: what was trained; ``model/`` has the weights with it added.
ADAPTER = "adapter.safetensors"
#: Most metrics that are columns of a table of results.
MOST_COLUMNS = 4


def measure_best(
    trainer: Finetuner, prepared: PreparedData, folder: Path | None = None
) -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, ...] | None]]:
    """Measure the best model, all processes together; returns split -> metrics, and split -> what was kept of it. In
    ``folder``, an adapter is written before it is merged; None for all processes but the first."""
    from models.port.adapter import merge

    trainer.use_best_weights()
    if trainer.model.adapter is not None:
        if folder is not None:
            write_adapter(trainer.model, folder / ADAPTER)
        merge(trainer.model)  # so that what is measured is what is saved
        trainer.best.metrics, trainer.best_outputs = {}, None
    # An evaluation is repeatable (Finetuner.measure), so the best step's is not made again. But a run that was resumed
    # after it has only its metrics.
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


@contextlib.contextmanager
def tracked(
    trainer: Finetuner, recipe: Recipe, folder: Path, step: int, left: bool, console: Console
) -> Iterator[None]:
    """Give a trainer the recipe's trackers from a step on, and close them after the ``with`` block; ``left`` as of
    :class:`.tracking.MetricsFile`."""

    def tell(text: str) -> None:
        console.print(f"note   {text}", highlight=False, soft_wrap=True)

    trainer.tracker = Tracker(folder, recipe, step, tell, trainer.schedule.eval_steps, left)
    exit_status = 1
    try:
        yield
        exit_status = 0
    finally:
        trainer.tracker.close(exit_status)


def write_adapter(model: Any, path: Path) -> None:
    """Write the trained parameters of an adapted port in Hugging Face's names and layout, whole or not at all. The
    file's metadata holds the numbers that scale their update. Raises WriteFailed if the system refuses it."""
    lora = model.adapter
    weights = values_of(model)
    tensors = {name: weights[name] for name in weights if lora.trains(name)}
    numbers = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
    with appearing(path) as partial, writing(partial, sum(value.nbytes for value in tensors.values())):
        write_tensors(partial, tensors, {"lora": json.dumps(numbers)})


def finish(recipe: Recipe, folder: Path, job: Assembled, trainer: Finetuner) -> dict[str, Any]:
    """Measure and save the best model, write its card, and close the run; returns the content of metrics.json."""
    prepared = job.prepared
    measured, outputs = measure_best(trainer, prepared, folder)
    trainer.shared = False  # from here on the first process is alone
    kept = {split: arrays for split, arrays in outputs.items() if arrays is not None}
    calibration = job.task.calibrate(recipe, prepared, kept)
    results = {
        **measured,
        "best": {"metric": recipe.train.save_best, "value": trainer.best.best_value, "step": trainer.best.best_step},
        "training": {
            "steps": trainer.last_step,
            "epochs": round(trainer.last_step / trainer.schedule.steps_per_epoch, 4),
            "stopped_early": trainer.best.stopped,
            "finished_early": not trainer.best.stopped and trainer.last_step < trainer.schedule.max_steps,
            "seconds": round(trainer.seconds, 1),
            "schedule": asdict(trainer.schedule),
        },
        "examples": prepared.sizes,
        "data": data_facts(job),
        **_baselines(recipe, job, trainer.console),
        **_class_weights(prepared),
        **({"calibration": calibration} if calibration else {}),
        "parameters": job.parameters,
        "hardware": runtime.hardware(),
    }

    whole.write_folder(
        folder / "model", lambda unfinished: save_model(recipe, job, trainer.model, unfinished), manifest=False
    )
    names, length = prepared.label_names, job.fit.length
    run = Run(folder, recipe, job.task, job.tokenizer, trainer.model, names, length, calibration)
    trainer.model.eval()
    write_split_predictions(run, job.splits, prepared, outputs)
    job.task.write_artifacts(run, trainer, prepared, trainer.console)
    write_card(run, results)
    write_report(recipe, folder, results)
    with interruption.hold_signals():  # from here on the run is finished, and no signal says otherwise
        write_text(folder / "metrics.json", strict_json.dumps(results, indent=1) + "\n")
        interruption.settle(0)
    trainer.checkpoints.remove(trainer.best.best_step)
    assert trainer.tracker is not None
    trainer.tracker.summarize(results)
    return results


def _baselines(recipe: Recipe, job: Assembled, console: Console) -> dict[str, Any]:
    """Results of simple methods on the run's own splits; empty if ``train.baseline`` is false."""
    if not recipe.train.baseline:
        return {}
    with console.status("measuring the baselines"):
        found = job.task.baselines(recipe, job.tokenizer, job.splits, job.prepared)
    return {"baselines": found}


def _class_weights(prepared: PreparedData) -> dict[str, dict[str, float]]:
    """Weight of each label in the training loss, by name; empty where all weigh the same."""
    if prepared.class_weights is None:
        return {}
    return {"class_weights": dict(zip(settled(prepared.label_names), prepared.class_weights.tolist(), strict=True))}


def write_split_predictions(
    run: Run, splits: Mapping[str, Any], prepared: PreparedData, outputs: Mapping[str, tuple[np.ndarray, ...] | None]
) -> None:
    """Write the best model's predictions of each example, a file for each measured split.

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


def show_results(results: dict[str, Any], recipe: Recipe, folder: Path, console: Console) -> None:
    """A table of the best model's numbers and the baselines', and what to do with it."""
    task, splits = task_of(recipe), [name for name in ("validation", "test") if name in results]
    best, done = results["best"], results["training"]
    if done["finished_early"]:
        console.print(f"finished early at step {done['steps']} of {done['schedule']['max_steps']}", highlight=False)
    console.print(f"best model (step {best['step']}, by validation {best['metric']})", highlight=False)
    console.print(metrics_table({split: results[split] for split in splits}))
    if line := compared(results, task.LOWER_IS_BETTER):
        console.print(f"baseline: {line}", highlight=False, soft_wrap=True)
    if "threshold" in (calibration := results.get("calibration", {})):
        console.print(f"note   {describe_calibration(calibration)}", highlight=False, soft_wrap=True)
    if line := overfitted(read_metrics(folder / "metrics.jsonl"), best):
        console.print(f"note   {line}", highlight=False, soft_wrap=True)
    console.print(f"report: {folder / PAGE}", highlight=False, soft_wrap=True)
    console.print(f"trained {done['seconds']:.4g} s; run folder: {folder}", highlight=False, soft_wrap=True)
    console.print(f"next: {task.DESCRIPTION.command(folder, recipe)}", highlight=False, soft_wrap=True)
