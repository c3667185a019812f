"""`toolkit report`: rebuild the page of a finished run, and the files for it that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from toolkit.commands.predict import load_measurable_run, read_recipe
from toolkit.errors import UserError
from toolkit.finetune.identity import describe_changed_split
from toolkit.finetune.model import make_trainer
from toolkit.finetune.report.page import REMEDY, write_report
from toolkit.finetune.results import write_split_predictions
from toolkit.machine.disk import find_write_obstacle
from toolkit.recipe.shipped_recipes import new_file
from toolkit.run_folder.folder import amending
from toolkit.run_folder.predictions import SPLITS, predictions_file
from toolkit.run_folder.read import read_json
from toolkit.run_folder.tracking import complaint_of_finished

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


def remake_report(folder: Path, console: Console, output: Path | None = None) -> Path:
    """Write the page of a finished run from the files of its folder. Compute missing predictions first.

    Args:
        folder: folder of a finished run.
        console: console for the path of the page and notes.
        output: new file for the page; None for `report.html` in ``folder``.

    Returns:
        The path of the page.

    Raises:
        UserError: the folder is not a finished run, one of its files is damaged, or it is not writable but must be.
    """
    recipe = read_recipe(folder)
    if output is not None:
        new_file(output)
    results = read_json(folder / "metrics.json", REMEDY)
    if (complaint := complaint_of_finished(folder)) is not None:
        console.print(f"note: {complaint}", highlight=False, soft_wrap=True)
    missing_splits = [name for name in SPLITS if name in results and not predictions_file(folder, name).exists()]
    if missing_splits or output is None:
        _check_writable(folder, missing_splits)
    if missing_splits:
        _write_missing_predictions(recipe, folder, missing_splits, console)
    if output is None:
        with amending(folder):
            path = write_report(recipe, folder, results)
    else:
        path = write_report(recipe, folder, results, output)
    console.print(f"report: {path}", highlight=False, soft_wrap=True)
    return path


def _check_writable(folder: Path, missing_splits: list[str]) -> None:
    """Check that the page can be written into the run folder.

    Args:
        folder: run folder.
        missing_splits: splits whose predictions must be written first.
    """
    if (obstacle := find_write_obstacle(folder)) is None:
        return
    if missing_splits:
        missing_file = predictions_file(folder, missing_splits[0]).name
        raise UserError(f"{folder}: lacks {missing_file}, and {obstacle}; copy the run to a folder of yours")
    raise UserError(f"{folder}: {obstacle}; to write the page elsewhere, add --output FILE")


def _write_missing_predictions(recipe: Recipe, folder: Path, missing_splits: list[str], console: Console) -> None:
    """Write the best model's predictions for the splits in ``missing_splits``, and the files of the task."""
    run, splits, prepared_data = load_measurable_run(folder, recipe)
    trainer = make_trainer(run.recipe, folder, run.task, run.model, console)
    outputs = {}
    for split_name in missing_splits:
        if (dataset := getattr(prepared_data, split_name)) is None:
            raise UserError(f"{folder}: its data has no {split_name} split any more")
        if split_change := describe_changed_split(folder, split_name, splits[split_name]):
            missing_file = predictions_file(folder, split_name).name
            raise UserError(
                f"{folder}: lacks {missing_file}, and {split_change}; put back the data of the run, or {missing_file}"
            )
        trainer.measure(dataset, split_name)
        outputs[split_name] = trainer.outputs
    with amending(folder):
        write_split_predictions(run, splits, prepared_data, outputs)
        run.task.write_artifacts(run, trainer, prepared_data, console)
