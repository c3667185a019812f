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
from toolkit.files.cache import kept
from toolkit.files.digest import digest
from toolkit.files.whole import MANIFEST, sha256
from toolkit.finetune.finish_early import assemble_again, newest_checkpoint
from toolkit.finetune.model import load_model, save_model
from toolkit.machine import runtime
from toolkit.machine.disk import check_writable
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import CHECKPOINTS, PATIENCE_SECONDS, amending, differing_keys
from toolkit.run_folder.read import read_json, reading

if TYPE_CHECKING:
    from toolkit.training.trainer import Finetuner

#: What `--continue` sets, besides the weights: they are those of the other run.
SET = {"model.revision": None, "tokenizer.kind": "checkpoint", "tokenizer.path": None, "tokenizer.vocab_size": None}
#: Keys of which nothing is said: a new run has a folder of its own, and settles its backward itself.
UNSAID = ("train.output_dir", "model.backward", "model.weights", *SET)
REMEDY = "restore it from a copy, or train it again"


def continue_from(recipe: Recipe, run: Path, console: Console) -> tuple[list[str], dict[str, Any]]:
    """Find what a recipe's run begins with if it continues another.

    Args:
        recipe: as the user has written it.
        run: the folder of the other run, which has finished or was interrupted.
        console: where to say what happens.

    Returns:
        ``KEY=VALUE`` pairs that the recipe is to be read with, and what to record (:class:`.recipe.Findings`).

    Raises:
        UserError: architecture or tokenizer differ, at the key; the run has no weights, or is in use.
    """
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"--continue {run}: holds no recipe.yaml, so it is not a run folder")
    there = load_recipe(run / "recipe.yaml").with_values({"train.output_dir": str(run)})
    _check_alike(recipe, there, run)
    if (run / "metrics.json").exists():
        folder, step = run / "model", _best_step(run / "metrics.json")
        state = run / checkpoint.OPTIMIZER
    else:
        folder, step = _best_so_far(recipe, there, run, console)
        state = folder / checkpoint.OPTIMIZER
    with reading(folder / "config.json", REMEDY):
        stored = read_object(folder / "config.json")
    _check_architecture(recipe, there, stored, run)
    settings = {"model.weights": str(folder.absolute()), **SET}
    differing = differing_keys(there.to_yaml(), recipe.to_yaml())
    config = tuple(f"model.config.{key}: " for key in there.model.config if key not in recipe.model.config)
    left_out = (*(f"{key}: " for key in UNSAID), *config)
    differs = [text for text in differing if not text.startswith(left_out)]
    same = recipe.train.optimizer == there.train.optimizer and not recipe.train.lora and not recipe.train.sharding
    optimizer = str(state.absolute()) if same and state.is_file() else None
    facts = {"run": str(run.absolute()), "step": step, "optimizer": optimizer, "differs": differs}
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()], facts


def note_of(facts: Mapping[str, Any]) -> str:
    """Say in a line what a run continues, and how its recipe differs."""
    differs = "; ".join(facts["differs"]) or "the recipe is the same"
    new = "its optimizer's moments and a new schedule" if facts["optimizer"] else "a new optimizer and schedule"
    return f"continues {facts['run']} from step {facts['step']}, with {new}: {differs}"


def take_over_moments(path: str | None, trainer: Finetuner, console: Console) -> None:
    """Let a run begin with the optimizer's state of the run that it continues, if it fits.

    Args:
        path: of the state; None if there is none to take over.
        trainer: of the run, which has made no step yet.

    Raises:
        UserError: the file is damaged, or has gone.
    """
    if path is None:
        return
    with reading(Path(path), "restore it, or remove it to begin with a new optimizer"):
        wrong = checkpoint.unfit(trainer.model, Path(path))
    if wrong is None:
        trainer.begins_with = Path(path)
    else:
        console.print(f"note   the optimizer is new: {path} does not fit {wrong}", highlight=False, soft_wrap=True)


def _check_alike(recipe: Recipe, there: Recipe, run: Path) -> None:
    """Check that both recipes have a task, a family and a tokenizer in common.

    Raises:
        UserError: at the first key in which they differ.
    """
    keys = ["task", "model.name"]
    if "checkpoint" not in (recipe.tokenizer.kind, there.tokenizer.kind):
        keys += ["tokenizer.kind", "tokenizer.path", "tokenizer.vocab_size"]
    if recipe.model.weights is not None:
        keys.append("model.weights")
    differing = differing_keys(there.to_yaml(), recipe.to_yaml())
    for key in keys:
        if found := next((text for text in differing if text.startswith(f"{key}: ")), None):
            raise recipe.error(key, f"--continue {run}: {found.removeprefix(f'{key}: ')}; set it as it is there")


def _check_architecture(recipe: Recipe, there: Recipe, stored: Mapping[str, Any], run: Path) -> None:
    """Check that the recipe's ``model.config`` describes the other run's model; its dropout may be another.

    Raises:
        UserError: at the first key in which it does not.
    """
    own = {**families.part(recipe.model.name, "schema").DEFAULTS, **stored, **there.model.config}
    for key, value in recipe.model.config.items():
        if value != own.get(key) and "drop" not in key:
            message = f"--continue {run}: {own.get(key)} there, {value} here; a continued run keeps the architecture"
            raise recipe.error(("model", "config", key), message)


def _best_step(metrics: Path) -> int:
    """Return the step of a finished run's best weights, from its ``metrics.json``.

    Raises:
        UserError: the file is damaged, or names no such step.
    """
    results = read_json(metrics, REMEDY)
    with reading(metrics, REMEDY):
        best = results.get("best")
        step = best.get("step") if isinstance(best, dict) else None
        if type(step) is not int or step < 0:
            raise ValueError("its best.step should be a number of steps")
    return step


def _best_so_far(recipe: Recipe, there: Recipe, run: Path, console: Console) -> tuple[Path, int]:
    """The best weights of an interrupted run, or the newest if none were validated, as ``model/`` holds a finished
    run's; and their step."""
    if refused := check_writable(run):
        raise UserError(f"{run}: {refused}")
    with amending(run, PATIENCE_SECONDS if runtime.processes() > 1 else 0):
        saved = newest_checkpoint(run, console)
        state = checkpoint.read_state(saved)
        best = state.get("best_step")
        weights = saved if best is None else Checkpoints(run / CHECKPOINTS).best(best)

        def fill(folder: Path) -> None:
            here = {"runtime.device": recipe.runtime.device, "runtime.threads": recipe.runtime.threads}
            job = assemble_again(there.with_values(here), run, console)
            model = load_model(there, job)
            checkpoint.load_weights(model, weights)
            save_model(there, job, model, folder)
            if (weights / checkpoint.OPTIMIZER).exists():
                shutil.copyfile(weights / checkpoint.OPTIMIZER, folder / checkpoint.OPTIMIZER)

        folder = kept("weights", digest(there.to_yaml(), sha256(weights / MANIFEST)), fill)
    return folder, state["step"] if best is None else best
