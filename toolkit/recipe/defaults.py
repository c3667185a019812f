"""Defaults that depend on other keys of a recipe: its task, its model, its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import families
from toolkit.recipe.keys import MODEL_KEYS, OPTIMIZER_KEYS, PROBLEM_METRICS, TASK_KEYS

if TYPE_CHECKING:
    from toolkit.recipe.recipe import Recipe


def fill_defaults(recipe: Recipe) -> Recipe:
    """Return the recipe with the defaults of its task, model and optimizer.

    Raises:
        UserError: a key is set that exists only for other tasks, models or optimizers.
    """
    train = recipe.train
    values: dict[str, Any] = {}
    if recipe.data.problem_type is not None and train.save_best is None:
        values["train.save_best"] = PROBLEM_METRICS[recipe.data.problem_type][0]
    if train.eval_batch_size is None:
        values["train.eval_batch_size"] = train.batch_size
    if train.lora is not None and train.lora.targets is None:
        targets = list(families.part(recipe.model.name, "weights").LORA_TARGETS)
        values["train.lora"] = train.lora.model_copy(update={"targets": targets})
    recipe = recipe.with_values(values)
    recipe = recipe.with_values(_missing_defaults(recipe, "task", recipe.task, TASK_KEYS))
    recipe = recipe.with_values(_missing_defaults(recipe, "optimizer", train.optimizer, OPTIMIZER_KEYS))
    return recipe.with_values(_missing_defaults(recipe, "model", recipe.model.name, MODEL_KEYS))


def _missing_defaults(
    recipe: Recipe, kind: str, name: str, keys_by_section: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the defaults of the keys that the recipe does not set.

    Args:
        recipe: recipe.
        kind: ``task``, ``model`` or ``optimizer``, for errors.
        name: name of the recipe's task, model or optimizer.
        keys_by_section: name of a task, model or optimizer -> its keys with their defaults.

    Raises:
        UserError: the recipe sets a key that exists only for other names.
    """
    defaults = {}
    for key in dict.fromkeys(key for known_keys in keys_by_section.values() for key in known_keys):
        section, _, field = key.partition(".")
        if getattr(getattr(recipe, section), field) is None:
            defaults[key] = keys_by_section[name].get(key)
        elif key not in keys_by_section[name]:
            other_names = " or ".join(
                other_name for other_name, known_keys in keys_by_section.items() if key in known_keys
            )
            raise recipe.error(key, f"is for {kind} {other_names}, not for {name}; remove it")
    return defaults


def resolve_length(recipe: Recipe) -> Recipe:
    """Return the recipe with a single training length: epochs on the command line replace the file's max_steps.

    The same holds for max_steps on the command line and epochs in the file.
    """
    train = recipe.train
    if train.epochs is None or train.max_steps is None:
        return recipe
    for key, other_key in (("epochs", "max_steps"), ("max_steps", "epochs")):
        if recipe.is_overridden(f"train.{key}") and not recipe.is_overridden(f"train.{other_key}"):
            recipe.findings.note(f"train.{key}={getattr(train, key)} takes the place of the recipe's {other_key}")
            return recipe.with_values({f"train.{other_key}": None})
    return recipe
