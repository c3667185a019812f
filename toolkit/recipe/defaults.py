"""Defaults that depend on other keys of a recipe: its task, its model, its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import families
from toolkit.recipe.keys import MODEL_KEYS, OPTIMIZER_KEYS, PROBLEM_METRICS, TASK_KEYS

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


def settled_keys(recipe: Recipe) -> Recipe:
    """The recipe with the defaults of its task, model and optimizer. Raises UserError if a key is set that only other
    tasks, models or optimizers know."""
    train = recipe.train
    values: dict[str, Any] = {}
    if recipe.data.problem_type is not None and train.save_best is None:
        values["train.save_best"] = PROBLEM_METRICS[recipe.data.problem_type][0]
    if train.eval_batch_size is None:
        values["train.eval_batch_size"] = train.batch_size
    if train.lora is not None and train.lora.targets is None:
        adapted = list(families.part(recipe.model.name, "weights").ADAPTED)
        values["train.lora"] = train.lora.model_copy(update={"targets": adapted})
    recipe = recipe.with_values(values)
    recipe = recipe.with_values(_known(recipe, "task", recipe.task, TASK_KEYS))
    recipe = recipe.with_values(_known(recipe, "optimizer", train.optimizer, OPTIMIZER_KEYS))
    return recipe.with_values(_known(recipe, "model", recipe.model.name, MODEL_KEYS))


def _known(recipe: Recipe, what: str, name: str, keys: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the defaults of the keys that this task, model or optimizer knows and the recipe leaves open."""
    defaults = {}
    for key in dict.fromkeys(key for known in keys.values() for key in known):
        section, _, field = key.partition(".")
        if getattr(getattr(recipe, section), field) is None:
            defaults[key] = keys[name].get(key)
        elif key not in keys[name]:
            others = " or ".join(other for other, known in keys.items() if key in known)
            raise recipe.error(key, f"is for {what} {others}, not for {name}; remove it")
    return defaults


def settled_length(recipe: Recipe) -> Recipe:
    """The recipe in which epochs or max_steps on the command line takes the place of the other one in the file."""
    train = recipe.train
    if train.epochs is None or train.max_steps is None:
        return recipe
    for chosen, other in (("epochs", "max_steps"), ("max_steps", "epochs")):
        if recipe.is_overridden(f"train.{chosen}") and not recipe.is_overridden(f"train.{other}"):
            recipe.found.note(f"train.{chosen}={getattr(train, chosen)} takes the place of the recipe's {other}")
            return recipe.with_values({f"train.{other}": None})
    return recipe
