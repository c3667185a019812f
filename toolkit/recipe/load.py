"""Load a recipe: rename former keys, check the YAML with the schema, and fill in the defaults of task and model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic import BaseModel

from toolkit.errors import UserError
from toolkit.machine.home import expand_user_home
from toolkit.recipe import yaml_source
from toolkit.recipe.checks import check_choices, check_task
from toolkit.recipe.defaults import fill_defaults, resolve_length
from toolkit.recipe.keys import FORMER_KEYS
from toolkit.recipe.recipe import Recipe, path_locations, section_of


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: file of the recipe.
        overrides: ``key.path=value`` options of the command line; values are YAML.

    Raises:
        UserError: the recipe is wrong; the message has a line for each error.
    """
    values, source = yaml_source.read(Path(path), overrides)
    notes = _rename_former(values, source)
    try:
        recipe = Recipe.model_validate(values)
    except pydantic.ValidationError as error:
        errors = sorted(error.errors(), key=lambda problem: source.line(tuple(map(str, problem["loc"]))))
        raise UserError(*(str(source.error(*_explain_error(problem))) for problem in errors)) from None
    recipe._source = source
    recipe.findings.notes += notes
    _check_paths(recipe)
    recipe = fill_defaults(recipe)
    check_task(recipe)
    recipe = resolve_length(recipe)
    check_choices(recipe)
    return recipe


def _rename_former(values: dict[str, Any], recipe_source: yaml_source.Source) -> list[str]:
    """Rename keys from their former to their current names, and return a note for each key.

    Args:
        values: keys and values of a recipe, changed in place.
        recipe_source: name and lines of the recipe, for errors.

    Raises:
        UserError: a key is set with both names.
    """
    notes = []
    for former_key, current_key in FORMER_KEYS.items():
        old_path, new_path = tuple(former_key.split(".")), tuple(current_key.split("."))
        section = values.get(old_path[0])
        if not isinstance(section, dict) or old_path[1] not in section:
            continue
        if new_path[1] in section:
            raise recipe_source.error(old_path, f"is called {current_key} now, which is set too; remove this one")
        location, value = recipe_source.where(old_path), section.pop(old_path[1])
        section[new_path[1]] = value
        recipe_source.rename(old_path, new_path)
        if value is not None:
            notes.append(f"{location}: {former_key} is called {current_key} now")
    return notes


def _check_paths(recipe: Recipe) -> None:
    """Check that all paths of the recipe are valid file names; the files need not exist.

    Raises:
        UserError: a path cannot be a file name.
    """
    values = recipe.model_dump()
    for path in path_locations(values):
        file_name = section_of(values, path)[path[-1]]
        try:
            Path(expand_user_home(file_name)).expanduser().exists()
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise recipe.error(tuple(map(str, path)), f"{file_name}: no file can be called so: {reason}") from None


def _explain_error(error_details: Any) -> tuple[yaml_source.KeyPath, str]:
    """Return the key of a pydantic error, and a message with a remedy."""
    # pydantic adds "[key]" for keys of mappings.
    path = tuple(str(part) for part in error_details["loc"] if part != "[key]")
    kind, value = error_details["type"], error_details["input"]
    if kind == "extra_forbidden":
        choices = _known_keys(path[:-1])
        return path, "unknown key" + (yaml_source.suggest(path[-1], choices) or f"; known: {', '.join(choices)}")
    if kind == "missing":
        return path, "missing; it has no default"
    if kind == "literal_error":
        choices = error_details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        suggestion = yaml_source.suggest(str(value), choices)
        return path, f"{yaml_source.quote_value(value)} is not one of {', '.join(choices)}{suggestion}"
    if kind == "value_error":  # raised by a validator of :mod:`toolkit.recipe.all_keys`
        return path, str(error_details["ctx"]["error"])
    if kind in ("model_type", "dict_type"):
        return path, f"expected a mapping of keys to values, got {yaml_source.quote_value(value)}"
    return path, f"{yaml_source.quote_value(value)}: {error_details['msg'][0].lower()}{error_details['msg'][1:]}"


def _known_keys(key_path: yaml_source.KeyPath) -> list[str]:
    """Return the keys of the section at a path."""
    section: type[BaseModel] = Recipe
    for name in key_path:
        annotation = section.model_fields[name].annotation
        section = next(kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type))
    return list(section.model_fields)


def all_keys() -> list[str]:
    """Return every key of a recipe in the notation of the command line, such as ``train.epochs``."""
    key_names = []
    for section, field in Recipe.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            key_names += [f"{section}.{key}" for key in kind.model_fields]
        else:
            key_names.append(section)
    return key_names
