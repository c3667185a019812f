"""Choose the backward of a run with ``model.backward: auto``, once for the whole run.

The choice becomes the recipe's value before anything is built on it. So the gate compares it, the run's ``recipe.yaml``
records it, and a resumed run reads it there, even on a machine with another amount of memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from models import families
from toolkit.errors import UserError
from toolkit.finetune.memory import AUTO, choose_backward
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.yaml_source import read

if TYPE_CHECKING:
    from toolkit.finetune.assembly import AssembledRun


def resolve_backward(
    recipe: Recipe, job: AssembledRun, folder: Path, device: str, processes: int, received_backward: str | None = None
) -> tuple[Recipe, str | None]:
    """Choose the backward, and set it in the configurations of the assembled run.

    Args:
        recipe: recipe of the run.
        job: parts of the run.
        folder: run folder; a resumed run keeps its backward.
        device: device of the run.
        processes: number of processes of the run.
        received_backward: choice of the process that started the current process; None without such a process.

    Returns:
        The recipe with the choice, and a note on it; None if the recipe sets a backward.
    """
    if recipe.model.backward != AUTO:
        return recipe, None
    if received_backward is not None:
        backward, note = received_backward, None
    elif (earlier_backward := stored_backward(folder)) is not None:
        backward, note = earlier_backward, f"model.backward auto: {earlier_backward}, with which this run began"
    else:
        config_values = families.part(recipe.model.name, "schema").resolve(job.config.to_hf())
        num_local_processes = int(os.environ.get("PADDLE_LOCAL_SIZE", processes))
        choice = choose_backward(recipe, config_values, job.fit.length, device, num_local_processes)
        backward, note = choice.backward, str(choice)
    job.config.backward = job.stored_config.backward = backward
    return recipe.with_values({"model.backward": backward}), note


def stored_backward(folder: Path) -> str | None:
    """Return the backward in the ``recipe.yaml`` of a run folder; None without a valid one."""
    try:
        values, _ = read(folder / "recipe.yaml")
        backward = values["model"]["backward"]
    except (UserError, KeyError, TypeError):
        return None
    return backward if backward in ("reversible", "autograd") else None
