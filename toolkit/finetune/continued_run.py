"""`toolkit finetune RECIPE --continue RUN`: a run that begins with the weights and the tokenizer of another.

It is a run like any other whose ``model.weights`` is a checkpoint, with a gate on these weights and a schedule of its
own. A finished run gives its ``model/``. Of an interrupted run the best weights so far are put into the cache in that
form. The optimizer's state after the step of these weights, its moments and their count of updates, is taken over if
the optimizer is the same and every parameter has its shape.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from models import families
from models.files.plain import read_object
from toolkit.errors import UserError
from toolkit.files.cache import get_or_create_entry
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.files.whole import MANIFEST
from toolkit.finetune.finish_early import assemble_again, newest_checkpoint
from toolkit.finetune.model import load_model, save_model
from toolkit.machine import runtime
from toolkit.machine.disk import find_write_obstacle
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import CHECKPOINTS, PATIENCE_SECONDS, amending, differing_keys
from toolkit.run_folder.read import read_json, reading

if TYPE_CHECKING:
    from toolkit.training.trainer import Finetuner

#: Settings of `--continue` in addition to the weights, which come from the other run.
FIXED_SETTINGS = {
    "model.revision": None,
    "tokenizer.kind": "checkpoint",
    "tokenizer.path": None,
    "tokenizer.vocab_size": None,
}
#: Keys whose differences are not reported: a new run has another folder, and chooses its backward again.
UNCOMPARED_KEYS = ("train.output_dir", "model.backward", "model.weights", *FIXED_SETTINGS)
REMEDY = "restore it from a copy, or train it again"


def continue_from(recipe: Recipe, run: Path, console: Console) -> tuple[list[str], dict[str, Any]]:
    """Return the settings with which a recipe's run continues another run.

    Args:
        recipe: recipe as the user has written it.
        run: folder of the other run, which has finished or was interrupted.
        console: console for messages.

    Returns:
        ``KEY=VALUE`` pairs for reading the recipe, and facts to record (:class:`.recipe.Findings`).

    Raises:
        UserError: architecture or tokenizer differ, or the run has no weights, or is in use.
    """
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"--continue {run}: holds no recipe.yaml, so it is not a run folder")
    previous_recipe = load_recipe(run / "recipe.yaml").with_values({"train.output_dir": str(run)})
    _check_same_kind(recipe, previous_recipe, run)
    if (run / "metrics.json").exists():
        folder, step = run / "model", _best_step(run / "metrics.json")
        state = run / checkpoint.OPTIMIZER
    else:
        folder, step = _best_so_far(recipe, previous_recipe, run, console)
        state = folder / checkpoint.OPTIMIZER
    with reading(folder / "config.json", REMEDY):
        stored_config = read_object(folder / "config.json")
    _check_architecture(recipe, previous_recipe, stored_config, run)
    settings = {"model.weights": str(folder.absolute()), **FIXED_SETTINGS}
    differing = differing_keys(previous_recipe.to_yaml(), recipe.to_yaml())
    config = tuple(f"model.config.{key}: " for key in previous_recipe.model.config if key not in recipe.model.config)
    left_out = (*(f"{key}: " for key in UNCOMPARED_KEYS), *config)
    differs = [text for text in differing if not text.startswith(left_out)]
    can_reuse_moments = (
        recipe.train.optimizer == previous_recipe.train.optimizer
        and not recipe.train.lora
        and not recipe.train.sharding
    )
    optimizer = str(state.absolute()) if can_reuse_moments and state.is_file() else None
    facts = {"run": str(run.absolute()), "step": step, "optimizer": optimizer, "differs": differs}
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()], facts


def note_of(facts: Mapping[str, Any]) -> str:
    """Return a line that names the continued run, and the differences of the recipes."""
    differs = "; ".join(facts["differs"]) or "the recipe is the same"
    new = "its optimizer's moments and a new schedule" if facts["optimizer"] else "a new optimizer and schedule"
    return f"continues {facts['run']} from step {facts['step']}, with {new}: {differs}"


def load_continued_moments(state_path: str | None, trainer: Finetuner, console: Console) -> None:
    """Start a run with the optimizer's state of the run that it continues, if it fits.

    Args:
        state_path: file of the state; None without one.
        trainer: trainer of the run, before its first step.
        console: console for messages.

    Raises:
        UserError: the file is damaged, or was removed.
    """
    if state_path is None:
        return
    with reading(Path(state_path), "restore it, or remove it to begin with a new optimizer"):
        mismatch = checkpoint.unfit(trainer.model, Path(state_path))
    if mismatch is None:
        trainer.begins_with = Path(state_path)
    else:
        console.print(
            f"note   the optimizer is new: {state_path} does not fit {mismatch}", highlight=False, soft_wrap=True
        )


def _check_same_kind(recipe: Recipe, previous_recipe: Recipe, run: Path) -> None:
    """Check that both recipes have the same task, family and tokenizer.

    Args:
        recipe: recipe of the new run.
        previous_recipe: recipe of the run that is continued.
        run: folder of the run that is continued.

    Raises:
        UserError: they differ; the error names the first different key.
    """
    keys = ["task", "model.name"]
    if "checkpoint" not in (recipe.tokenizer.kind, previous_recipe.tokenizer.kind):
        keys += ["tokenizer.kind", "tokenizer.path", "tokenizer.vocab_size"]
    if recipe.model.weights is not None:
        keys.append("model.weights")
    differing = differing_keys(previous_recipe.to_yaml(), recipe.to_yaml())
    for key in keys:
        if difference := next((text for text in differing if text.startswith(f"{key}: ")), None):
            raise recipe.error(key, f"--continue {run}: {difference.removeprefix(f'{key}: ')}; set it as it is there")


def _check_architecture(recipe: Recipe, previous_recipe: Recipe, stored_config: Mapping[str, Any], run: Path) -> None:
    """Check that the recipe's ``model.config`` describes the other run's model; its dropout may differ.

    Args:
        recipe: recipe of the new run.
        previous_recipe: recipe of the run that is continued.
        stored_config: configuration that the previous run started from.
        run: folder of the run that is continued.

    Raises:
        UserError: they differ; the error names the first different key.
    """
    previous_config = {
        **families.part(recipe.model.name, "schema").DEFAULTS,
        **stored_config,
        **previous_recipe.model.config,
    }
    for key, value in recipe.model.config.items():
        if value != previous_config.get(key) and "drop" not in key:
            message = (
                f"--continue {run}: {previous_config.get(key)} there, {value} here; "
                "a continued run keeps the architecture"
            )
            raise recipe.error(("model", "config", key), message)


def _best_step(metrics_path: Path) -> int:
    """Return the step of a finished run's best weights, from its ``metrics.json``.

    Raises:
        UserError: the file is damaged, or names no such step.
    """
    results = read_json(metrics_path, REMEDY)
    with reading(metrics_path, REMEDY):
        best = results.get("best")
        step = best.get("step") if isinstance(best, dict) else None
        if type(step) is not int or step < 0:
            raise ValueError("its best.step should be a number of steps")
    return step


def _best_so_far(recipe: Recipe, previous_recipe: Recipe, run: Path, console: Console) -> tuple[Path, int]:
    """Return a folder with the best weights of an interrupted run, and the step of these weights.

    The folder has the layout of a finished run's ``model/``. If no weights were validated, they are the newest.
    """
    if refusal := find_write_obstacle(run):
        raise UserError(f"{run}: {refusal}")
    with amending(run, PATIENCE_SECONDS if runtime.num_processes() > 1 else 0):
        checkpoint_dir = newest_checkpoint(run, console)
        state = checkpoint.read_state(checkpoint_dir)
        best = state.get("best_step")
        weights = checkpoint_dir if best is None else Checkpoints(run / CHECKPOINTS).best(best)

        def fill(folder: Path) -> None:
            runtime_settings = {"runtime.device": recipe.runtime.device, "runtime.threads": recipe.runtime.threads}
            job = assemble_again(previous_recipe.with_values(runtime_settings), run, console)
            model = load_model(previous_recipe, job)
            checkpoint.load_weights(model, weights)
            save_model(previous_recipe, job, model, folder)
            if (weights / checkpoint.OPTIMIZER).exists():
                shutil.copyfile(weights / checkpoint.OPTIMIZER, folder / checkpoint.OPTIMIZER)

        folder = get_or_create_entry(
            "weights", digest_parts(previous_recipe.to_yaml(), file_sha256(weights / MANIFEST)), fill
        )
    return folder, state["step"] if best is None else best
