"""End a run: measure and save the best model, write its predictions, card and page, and show a table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from models.files.tensor_file import write_tensors
from models.port.weights import parameter_values
from toolkit.files import strict_json, whole
from toolkit.files.whole import replace_when_written, write_text
from toolkit.finetune.assembly import AssembledRun
from toolkit.finetune.baselines import compare_with_baselines, describe_overfitting
from toolkit.finetune.card import write_card
from toolkit.finetune.data_facts import data_facts
from toolkit.finetune.model import save_model
from toolkit.finetune.report.page import PAGE, write_report
from toolkit.machine import interruption, runtime
from toolkit.machine.disk import explain_write_errors
from toolkit.recipe.recipe import Recipe, require_setting
from toolkit.run_folder.predictions import predictions_file, write_predictions
from toolkit.run_folder.tracking import Tracker, read_metrics
from toolkit.tasks import task_of
from toolkit.tasks.classification.calibration import describe_calibration
from toolkit.tasks.interface import Run
from toolkit.tasks.metrics import COUNTS
from toolkit.terminal.progress import format_number

if TYPE_CHECKING:
    from toolkit.tasks.interface import Baseline, PreparedData
    from toolkit.training.trainer import Finetuner


#: In the run folder with ``train.lora``: what was trained; ``model/`` has the weights with it added.
ADAPTER = "adapter.safetensors"
#: In the run folder if a simple method is at least as good as the model: folder of the fitted method.
BASELINE = "baseline"
#: Most metrics that are columns of a table of results.
MAX_COLUMNS = 4
#: The same if there are intervals, which are wider than figures.
MAX_COLUMNS_WITH_INTERVALS = 3


def measure_best(
    trainer: Finetuner, prepared_data: PreparedData, folder: Path | None = None
) -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, ...] | None]]:
    """Measure the best model, all processes together; return the metrics and the kept outputs of each split.

    Args:
        trainer: trainer of the run.
        prepared_data: examples of all splits.
        folder: run folder, into which an adapter is written before it is merged; None for all processes except the
            first.
    """
    from models.port.adapter import merge_adapter

    trainer.use_best_weights()
    if trainer.model.adapter is not None:
        if folder is not None:
            write_adapter(trainer.model, folder / ADAPTER)
        merge_adapter(trainer.model)  # measure the weights that are saved
        trainer.best.metrics, trainer.best_outputs = {}, None
    # An evaluation is repeatable (Finetuner.measure), so the best step's is not made again. But a run that was resumed
    # after it has only its metrics.
    outputs: dict[str, tuple[np.ndarray, ...] | None] = {"validation": trainer.best_outputs}
    repeated_metrics = None
    if trainer.best.metrics is None or trainer.best_outputs is None:
        repeated_metrics = trainer.measure(prepared_data.validation, "validation")
        outputs["validation"] = trainer.outputs
    metrics_by_split: dict[str, Any] = {"validation": trainer.best.metrics or repeated_metrics}
    if prepared_data.test is not None:
        metrics_by_split["test"] = trainer.measure(prepared_data.test, "test")
        outputs["test"] = trainer.outputs
    return metrics_by_split, outputs


@contextlib.contextmanager
def track_metrics(
    trainer: Finetuner, recipe: Recipe, folder: Path, step: int, console: Console, *, has_interrupted_validation: bool
) -> Iterator[None]:
    """Give a trainer the recipe's trackers from a step on, and close them after the ``with`` block.

    Args:
        trainer: trainer of the run.
        recipe: recipe of the run.
        folder: run folder.
        step: last step before the block.
        has_interrupted_validation: whether the validation of that step was interrupted
            (:class:`.tracking.MetricsFile`).
        console: console for notes.
    """

    def print_note(text: str) -> None:
        console.print(f"note   {text}", highlight=False, soft_wrap=True)

    trainer.tracker = Tracker(
        folder, recipe, step, print_note, trainer.schedule.eval_steps, repeats_validation=has_interrupted_validation
    )
    exit_status = 1
    try:
        yield
        exit_status = 0
    finally:
        trainer.tracker.close(exit_status)


def write_adapter(model: Any, path: Path) -> None:
    """Write the trained parameters of an adapted port in Hugging Face's names and layout, whole or not at all.

    The file's metadata holds the numbers that scale their update.

    Raises:
        WriteError: the system refuses it.
    """
    lora = model.adapter
    weights = parameter_values(model)
    tensors = {name: weights[name] for name in weights if lora.is_trained(name)}
    numbers = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
    with (
        replace_when_written(path) as partial,
        explain_write_errors(partial, sum(value.nbytes for value in tensors.values())),
    ):
        write_tensors(partial, tensors, {"lora": json.dumps(numbers)})


def finish(recipe: Recipe, folder: Path, job: AssembledRun, trainer: Finetuner) -> dict[str, Any]:
    """Measure and save the best model, write its card, and close the run; return the content of ``metrics.json``.

    Args:
        recipe: recipe of the run.
        folder: run folder.
        job: data, tokenizer and model of the run.
        trainer: trainer of the run.
    """
    prepared_data = job.prepared_data
    metrics_by_split, outputs = measure_best(trainer, prepared_data, folder)
    trainer.shared = False  # from here on the first process is alone
    available_outputs = {split_name: arrays for split_name, arrays in outputs.items() if arrays is not None}
    calibration = job.task.calibrate(recipe, prepared_data, available_outputs)
    baselines = _measure_baselines(recipe, job, trainer.console)
    results = {
        **metrics_by_split,
        "best": {"metric": recipe.train.save_best, "value": trainer.best.best_value, "step": trainer.best.best_step},
        "training": {
            "steps": trainer.last_step,
            "epochs": round(trainer.last_step / trainer.schedule.steps_per_epoch, 4),
            "stopped_early": trainer.best.stopped,
            "finished_early": not trainer.best.stopped and trainer.last_step < trainer.schedule.max_steps,
            "seconds": round(trainer.seconds, 1),
            "schedule": asdict(trainer.schedule),
        },
        "examples": prepared_data.sizes,
        "data": data_facts(job),
        **_intervals_of_test(trainer, prepared_data, metrics_by_split, outputs),
        **_baseline_results(baselines),
        **_class_weights(prepared_data),
        **({"calibration": calibration} if calibration else {}),
        "parameters": job.parameters,
        "hardware": runtime.describe_hardware(),
    }

    comparison = compare_with_baselines(results, job.task.LOWER_IS_BETTER)
    if comparison and not comparison.is_model_better and (save := baselines[comparison.method].save) is not None:
        results["kept_baseline"] = comparison.method
        whole.write_folder(folder / BASELINE, save, writes_manifest=False)
    whole.write_folder(
        folder / "model", lambda unfinished: save_model(recipe, job, trainer.model, unfinished), writes_manifest=False
    )
    names, length = prepared_data.label_names, job.fit.length
    run = Run(folder, recipe, job.task, job.tokenizer, trainer.model, names, length, calibration)
    trainer.model.eval()
    write_split_predictions(run, job.splits, prepared_data, outputs)
    job.task.write_artifacts(run, trainer, prepared_data, trainer.console)
    write_card(run, results)
    write_report(recipe, folder, results)
    with interruption.hold_signals():  # from here on the run is finished, and no signal says otherwise
        write_text(folder / "metrics.json", strict_json.dumps(results, indent=1) + "\n")
        interruption.record_exit_status(0)
    trainer.checkpoints.remove(trainer.best.best_step)
    assert trainer.tracker is not None
    trainer.tracker.summarize(results)
    return results


def _measure_baselines(recipe: Recipe, job: AssembledRun, console: Console) -> dict[str, Baseline]:
    """Return the results of simple methods on the run's own splits; empty if ``train.baseline`` is false."""
    if not recipe.train.baseline:
        return {}
    return job.task.baselines(recipe, job.tokenizer, job.splits, job.prepared_data, console)


def _baseline_results(baselines: Mapping[str, Baseline]) -> dict[str, Any]:
    """Return the keys of ``metrics.json`` with the results of simple methods; empty if none was measured."""
    if not baselines:
        return {}
    return {
        "baselines": {method: baseline.metrics for method, baseline in baselines.items()},
        "baseline_intervals": {
            method: baseline.intervals for method, baseline in baselines.items() if baseline.intervals
        },
    }


def _intervals_of_test(
    trainer: Finetuner,
    prepared_data: PreparedData,
    metrics_by_split: Mapping[str, Any],
    outputs: Mapping[str, tuple[np.ndarray, ...] | None],
) -> dict[str, Any]:
    """Return ``metrics.json``'s entry with the 95% confidence intervals of the test split's metrics.

    The result is empty without a test split.

    Args:
        trainer: trainer of the run.
        prepared_data: model inputs of each split.
        metrics_by_split: metrics of each split.
        outputs: arrays that the task keeps of the model's output, by split; None for a split without them.
    """
    test_outputs = outputs.get("test")
    if test_outputs is None:
        return {}
    return {"intervals": {"test": trainer.intervals(metrics_by_split["test"], test_outputs, prepared_data.test)}}


def _class_weights(prepared_data: PreparedData) -> dict[str, dict[str, float]]:
    """Return the weight of each label in the training loss, by name; empty if all weights are equal."""
    if prepared_data.class_weights is None:
        return {}
    return {
        "class_weights": dict(
            zip(require_setting(prepared_data.label_names), prepared_data.class_weights.tolist(), strict=True)
        )
    }


def write_split_predictions(
    run: Run,
    splits: Mapping[str, Any],
    prepared_data: PreparedData,
    outputs: Mapping[str, tuple[np.ndarray, ...] | None],
) -> None:
    """Write the best model's predictions of each example, a file for each measured split.

    Args:
        run: finished run.
        splits: splits of the task's ``load_splits``.
        prepared_data: examples of these splits.
        outputs: outputs of the task's ``outputs``, by split.
    """
    for split_name, split_outputs in outputs.items():
        if split_outputs is not None:
            rows = run.task.predictions(run, splits[split_name], getattr(prepared_data, split_name), split_outputs)
            write_predictions(predictions_file(run.folder, split_name), rows)


def metrics_table(
    results: Mapping[str, Mapping[str, float]], intervals: Mapping[str, Mapping[str, Sequence[float]]] | None = None
) -> Table:
    """Return a table of metrics; with many metrics, such as one for each control code, it has a row for each.

    Args:
        results: split -> metric -> value.
        intervals: split -> metric -> 95% confidence interval, which follows the split; None for no intervals.
    """
    intervals = intervals or {}
    names = list(dict.fromkeys(name for numbers in results.values() for name in numbers))
    if len(names) > (MAX_COLUMNS_WITH_INTERVALS if intervals else MAX_COLUMNS):
        table = Table("metric")
        for split_name in results:
            table.add_column(split_name, justify="right")
            if intervals.get(split_name):
                table.add_column(f"{split_name} 95%", justify="right")
        for name in names:
            cells = []
            for split_name, numbers in results.items():
                cells.append(_figure(name, numbers))
                if of_split := intervals.get(split_name):
                    cells.append(_format_interval(of_split.get(name)))
            table.add_row(name, *cells)
        return table
    table = Table("split")
    for name in names:
        table.add_column(name, justify="right")
    for split_name, numbers in results.items():
        table.add_row(split_name, *(_figure(name, numbers) for name in names))
        if of_split := intervals.get(split_name):
            table.add_row(f"{split_name} 95%", *(_format_interval(of_split.get(name)) for name in names))
    return table


def _format_interval(interval: Sequence[float] | None) -> str:
    """Return a confidence interval as the cell of a table; empty if it is unknown."""
    return f"{format_number(interval[0])} to {format_number(interval[1])}" if interval else ""


def _figure(name: str, metrics: Mapping[str, float]) -> str:
    """A metric of a split; a count without decimals, nothing where the split lacks it."""
    if name not in metrics:
        return ""
    return f"{metrics[name]:,.0f}" if name in COUNTS else f"{metrics[name]:.4f}"


def show_results(results: dict[str, Any], recipe: Recipe, folder: Path, console: Console) -> None:
    """Print a table of the best model's metrics and the baselines', and the next command."""
    task, splits = task_of(recipe), [name for name in ("validation", "test") if name in results]
    best, training_facts = results["best"], results["training"]
    if training_facts["finished_early"]:
        console.print(
            f"finished early at step {training_facts['steps']} of {training_facts['schedule']['max_steps']}",
            highlight=False,
        )
    console.print(f"best model (step {best['step']}, by validation {best['metric']})", highlight=False)
    console.print(metrics_table({split_name: results[split_name] for split_name in splits}, results.get("intervals")))
    if comparison := compare_with_baselines(results, task.LOWER_IS_BETTER):
        console.print(f"baseline: {comparison}", highlight=False, soft_wrap=True)
    if "threshold" in (calibration := results.get("calibration", {})):
        console.print(f"note   {describe_calibration(calibration)}", highlight=False, soft_wrap=True)
    if line := describe_overfitting(read_metrics(folder / "metrics.jsonl"), best):
        console.print(f"note   {line}", highlight=False, soft_wrap=True)
    console.print(f"report: {folder / PAGE}", highlight=False, soft_wrap=True)
    console.print(f"trained {training_facts['seconds']:.4g} s; run folder: {folder}", highlight=False, soft_wrap=True)
    command = task.DESCRIPTION.command(folder, recipe)
    console.print(f"next: {command}", highlight=False, soft_wrap=True)
    if method := results.get("kept_baseline"):
        line = f"{method} does this task well, and the run has kept it, too: {command} --baseline"
        console.print(f"tip:  {line}", highlight=False, soft_wrap=True)
