"""Choose the backward of a run whose recipe says ``model.backward: auto``, once for the whole run.

The choice becomes the recipe's value before anything is built on it. So the gate judges it, the run's ``recipe.yaml``
names it, and a resumed run reads it there, on a machine with other memory, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from models import families
from toolkit.finetune.memory import AUTO, choose_backward
from toolkit.recipe.recipe import Recipe

if TYPE_CHECKING:
    from toolkit.finetune.assembly import Assembled


def settle_backward(
    recipe: Recipe, job: Assembled, folder: Path, device: str, processes: int, told: str | None = None
) -> tuple[Recipe, str | None]:
    """Choose, and put the choice into the configurations of a job that was assembled before it.

    Args:
        folder: of the run; one that has begun keeps what it began with.
        told: the choice of the process that started this one.

    Returns:
        The recipe with the choice, and a note on it; None where nothing was left to choose.
    """
    if recipe.model.backward != AUTO:
        return recipe, None
    if told is not None:
        chosen, note = told, None
    elif (begun := begun_with(folder)) is not None:
        chosen, note = begun, f"model.backward auto: {begun}, with which this run began"
    else:
        resolved = families.part(recipe.model.name, "schema").resolve(job.config.to_hf())
        here = int(os.environ.get("PADDLE_LOCAL_SIZE", processes))
        choice = choose_backward(recipe, resolved, job.fit.length, device, here)
        chosen, note = choice.backward, str(choice)
    job.config.backward = job.stored_config.backward = chosen
    return recipe.with_values({"model.backward": chosen}), note


def begun_with(folder: Path) -> str | None:
    """The backward of the run that has begun in a folder, as its ``recipe.yaml`` says; None where none has."""
    try:
        found = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))["model"]["backward"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None
    return found if found in ("reversible", "autograd") else None
