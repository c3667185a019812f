"""`toolkit finetune RECIPE --seeds N`: run a recipe with several seeds, and show the mean and spread of its metrics.

A metric of one run depends on the seed of the initial weights and of the order of the examples. The spread over seeds
shows whether a difference between two recipes is larger than this.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from toolkit.commands.compare import compare_runs
from toolkit.errors import UserError
from toolkit.finetune.finetune import finetune
from toolkit.machine import runtime
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import differing_keys

#: Page with the metrics of all runs, in the folder of the runs.
PAGE = "compare.html"


def finetune_with_seeds(
    path: Path, overrides: Sequence[str], num_seeds: int, skip_parity: str | None, console: Console, *, verbose: bool
) -> None:
    """Run a recipe with its seed and the next seeds, and compare the runs.

    The runs are in ``NAME-seeds/seed-SEED`` next to the recipe's run folder. The same command resumes an interrupted
    run and keeps finished runs.

    Args:
        path: file of the recipe.
        overrides: ``KEY=VALUE`` options of the runs.
        num_seeds: number of runs.
        skip_parity: reason for skipping the gate, or None to run it.
        console: console for progress and results.
        verbose: whether to print the table of a gate that passes, too.

    Raises:
        UserError: the recipe is wrong, or a finished run is of another recipe.
        ParityDrift: the port differs from the reference.
        Inconclusive: the gate could not decide.
    """
    if runtime.num_processes() > 1:
        raise UserError("--seeds: trains in one process; start it without a launcher")
    recipes = [_recipe_of_seed(path, overrides, number) for number in range(num_seeds)]
    for number, recipe in enumerate(recipes, start=1):
        if _is_finished(recipe):
            console.print(f"seed {recipe.seed}: {recipe.output_dir} is finished", highlight=False, soft_wrap=True)
            continue
        console.print(f"seed {recipe.seed}: run {number} of {num_seeds}", highlight=False)
        finetune(recipe, skip_parity, console, verbose=verbose)
        gc.collect()  # a trainer and its callbacks form a reference cycle
    page = recipes[0].output_dir.parent / PAGE
    compare_runs([recipe.output_dir for recipe in recipes], console, None if page.exists() else page)


def _recipe_of_seed(path: Path, overrides: Sequence[str], number: int) -> Recipe:
    """Return the recipe of a run, whose seed is the recipe's plus ``number``."""
    recipe = load_recipe(path, overrides)
    seed = recipe.seed + number
    folder = recipe.output_dir.with_name(f"{recipe.output_dir.name}-seeds") / f"seed-{seed}"
    return load_recipe(path, [*overrides, f"seed={seed}"]).with_values({"train.output_dir": str(folder)})


def _is_finished(recipe: Recipe) -> bool:
    """Return whether the run folder holds a finished run of this recipe.

    Raises:
        UserError: it holds a finished run of another recipe.
    """
    folder = recipe.output_dir
    if not (folder / "metrics.json").exists():
        return False
    saved_path = folder / "recipe.yaml"
    differences = differing_keys(saved_path.read_text(encoding="utf-8"), recipe.to_yaml(), str(saved_path))
    if recipe.model.backward == "auto":  # the saved recipe has the choice of :mod:`toolkit.finetune.backward`
        differences = [difference for difference in differences if not difference.startswith("model.backward: ")]
    if differences:
        message = f"{folder} holds a finished run of another recipe ({'; '.join(differences[:3])})"
        raise recipe.error("train.output_dir", f"{message}; set another folder")
    return True
