"""`toolkit finish`: end an interrupted run with its best weights so far, by the code that ends every run.

Nothing trains, so no gate runs: the record of the gate before training stays. A run that has no validation yet gets one
of its newest weights, as training would have made it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.data.source_names import check_source
from toolkit.errors import UserError
from toolkit.finetune.assembly import AssembledRun, assemble
from toolkit.finetune.identity import check_identity
from toolkit.finetune.model import load_model, make_trainer
from toolkit.finetune.results import finish, show_results, track_metrics
from toolkit.machine import runtime
from toolkit.machine.disk import find_write_obstacle
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import recorded_commits
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import CHECKPOINTS, amending
from toolkit.run_folder.tracking import check_trackers
from toolkit.tasks import task_of
from toolkit.terminal.quiet import silence_startup


def finish_early(folder: Path, console: Console) -> dict[str, Any]:
    """End an interrupted run, and return the content of ``metrics.json``.

    Raises:
        UserError: the run has finished, has no checkpoint or is in use, or its data have changed.
    """
    recipe = recipe_of_interrupted(folder)
    if refusal := find_write_obstacle(folder):
        raise UserError(f"{folder}: {refusal}")
    check_trackers(recipe)
    with amending(folder, patience=0):
        recipe = recipe_of_interrupted(folder)  # another process may just have finished it
        checkpoint_dir = newest_checkpoint(folder, console)
        return _finish(recipe, folder, checkpoint_dir, console)


def recipe_of_interrupted(folder: Path) -> Recipe:
    """Return the recipe of an interrupted run, whose folder may have moved since.

    Raises:
        UserError: the folder is not a run folder, or the run has finished.
    """
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: holds no recipe.yaml, so it is not a run folder")
    if (folder / "metrics.json").exists():
        raise UserError(f"{folder}: the run has finished already: toolkit evaluate {folder}")
    return load_recipe(folder / "recipe.yaml").with_values({"train.output_dir": str(folder)})


def newest_checkpoint(folder: Path, console: Console) -> Path:
    """Return the newest complete checkpoint of a run.

    Raises:
        UserError: the run has none.
    """
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    checkpoint_dir = checkpoints.newest(lambda damage: console.print(f"skipping {damage}", highlight=False))
    if checkpoint_dir is None:
        kind = "no checkpoint yet" if checkpoints.last_step() is None else "no whole checkpoint"
        raise UserError(f"{folder}: the run has {kind}; train it: toolkit finetune {folder / 'recipe.yaml'}")
    return checkpoint_dir


def assemble_again(recipe: Recipe, folder: Path, console: Console) -> AssembledRun:
    """Assemble the parts of an interrupted run again, on the device of its recipe.

    Raises:
        UserError: they differ from the parts at the start of the run.
    """
    silence_startup()
    runtime.configure_paddle(recipe.runtime.device, recipe.runtime.threads)
    runtime.seed_everything(recipe.seed)
    check_source(recipe, task_of(recipe).CORPORA)
    recipe.findings.commits.update(recorded_commits(folder))
    job = assemble(recipe)
    if note := check_identity(recipe, folder, job.identity):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)
    return job


def _finish(recipe: Recipe, folder: Path, checkpoint_dir: Path, console: Console) -> dict[str, Any]:
    """Finish a run at a checkpoint: measure and save the best weights, and return the results.

    Args:
        recipe: recipe of the run.
        folder: run folder.
        checkpoint_dir: folder of the checkpoint.
        console: console for progress.
    """
    job = assemble_again(recipe, folder, console)
    state = checkpoint.read_state(checkpoint_dir)
    model = load_model(recipe, job)
    trainer = make_trainer(recipe, folder, job.task, model, console, job.prepared_data, state.get("processes", 1))
    job.free_initial_weights()
    step, most = state["step"], trainer.schedule.max_steps
    console.print(f"finishing {folder} after step {step} of {most}", highlight=False, soft_wrap=True)
    with track_metrics(trainer, recipe, folder, step, console, has_interrupted_validation=state.get("left", False)):
        trainer.take_up(checkpoint_dir)
        if trainer.best.best_step is None:
            trainer.validate(checkpoint_dir)
        results = finish(recipe, folder, job, trainer)
    show_results(results, recipe, folder, console)
    return results
