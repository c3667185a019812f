"""`toolkit report`: rebuild the page of a finished run, and the files for it that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from toolkit.commands.predict import measurable, read_recipe
from toolkit.errors import UserError
from toolkit.finetune.identity import describe_changed_split
from toolkit.finetune.model import make_trainer
from toolkit.finetune.report.page import REMEDY, write_report
from toolkit.finetune.results import write_split_predictions
from toolkit.machine.disk import check_writable
from toolkit.recipe.shipped import new_file
from toolkit.run_folder.folder import amending
from toolkit.run_folder.predictions import SPLITS, predictions_file
from toolkit.run_folder.read import read_json
from toolkit.run_folder.tracking import complaint_of_finished

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


def remake_report(folder: Path, console: Console, output: Path | None = None) -> Path:
    """Write `report.html`, or a new file ``output``, from the files of a run folder; compute missing predictions.
    Raises UserError if the folder is no finished run, a file of it is damaged, or it must be written and cannot be."""
    recipe = read_recipe(folder)
    if output is not None:
        new_file(output)
    results = read_json(folder / "metrics.json", REMEDY)
    if (wrong := complaint_of_finished(folder)) is not None:
        console.print(f"note: {wrong}", highlight=False, soft_wrap=True)
    missing = [split for split in SPLITS if split in results and not predictions_file(folder, split).exists()]
    if missing or output is None:
        _check_writable(folder, missing)
    if missing:
        _predict(recipe, folder, missing, console)
    if output is None:
        with amending(folder):
            path = write_report(recipe, folder, results)
    else:
        path = write_report(recipe, folder, results, output)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)
    return path


def _check_writable(folder: Path, missing: list[str]) -> None:
    if (refused := check_writable(folder)) is None:
        return
    if missing:
        lacking = predictions_file(folder, missing[0]).name
        raise UserError(f"{folder}: lacks {lacking}, and {refused}; copy the run to a folder of yours")
    raise UserError(f"{folder}: {refused}; to write the page elsewhere, add --output FILE")


def _predict(recipe: Recipe, folder: Path, missing: list[str], console: Console) -> None:
    """Compute the best model's predictions for splits that lack them, and rewrite the task's own files."""
    run, splits, prepared_data = measurable(folder, recipe)
    trainer = make_trainer(run.recipe, folder, run.task, run.model, console)
    outputs = {}
    for split in missing:
        if (dataset := getattr(prepared_data, split)) is None:
            raise UserError(f"{folder}: its data has no {split} split any more")
        if split_change := describe_changed_split(folder, split, splits[split]):
            lacking = predictions_file(folder, split).name
            raise UserError(
                f"{folder}: lacks {lacking}, and {split_change}; put back the data of the run, or {lacking}"
            )
        trainer.measure(dataset, split)
        outputs[split] = trainer.outputs
    with amending(folder):
        write_split_predictions(run, splits, prepared_data, outputs)
        run.task.write_artifacts(run, trainer, prepared_data, console)
