"""Reads a recipe: YAML checked by the schema, former keys renamed, defaults of the task and the model filled in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic import BaseModel

from toolkit.errors import UserError
from toolkit.machine.home import in_own_home
from toolkit.recipe import yaml_source
from toolkit.recipe.checks import check_choices, check_task
from toolkit.recipe.defaults import settled_keys, settled_length
from toolkit.recipe.keys import FORMER_KEYS
from toolkit.recipe.recipe import Recipe, places_of_paths, section_of


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe with ``key.path=value`` from the command line; values are YAML. Raises UserError with a
    line for each thing that is wrong."""
    values, source = yaml_source.read(Path(path), overrides)
    notes = _rename_former(values, source)
    try:
        recipe = Recipe.model_validate(values)
    except pydantic.ValidationError as error:
        found = sorted(error.errors(), key=lambda problem: source.line(tuple(map(str, problem["loc"]))))
        raise UserError("\n".join(str(source.error(*_explain(problem))) for problem in found)) from None
    recipe._source = source
    recipe.found.notes += notes
    _check_paths(recipe)
    recipe = settled_keys(recipe)
    check_task(recipe)
    recipe = settled_length(recipe)
    check_choices(recipe)
    return recipe


def _rename_former(values: dict[str, Any], source: yaml_source.Source) -> list[str]:
    """Rename keys from their former to their present names; return a note for each. Raises UserError for a key under
    both names."""
    notes = []
    for former, now in FORMER_KEYS.items():
        old, new = tuple(former.split(".")), tuple(now.split("."))
        section = values.get(old[0])
        if not isinstance(section, dict) or old[1] not in section:
            continue
        if new[1] in section:
            raise source.error(old, f"is called {now} now, which is set too; remove this one")
        where, value = source.where(old), section.pop(old[1])
        section[new[1]] = value
        source.rename(old, new)
        if value is not None:
            notes.append(f"{where}: {former} is called {now} now")
    return notes


def _check_paths(recipe: Recipe) -> None:
    """Refuse impossible file names before any file is looked for."""
    values = recipe.model_dump()
    for path in places_of_paths(values):
        written = section_of(values, path)[path[-1]]
        try:
            Path(in_own_home(written)).expanduser().exists()
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise recipe.error(tuple(map(str, path)), f"{written}: no file can be called so: {reason}") from None


def _explain(problem: Any) -> tuple[yaml_source.KeyPath, str]:
    """Turn a pydantic error into its key and a sentence that says what would be right."""
    path = tuple(str(part) for part in problem["loc"] if part != "[key]")  # of a mapping, not of a section
    kind, given = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        return path, "unknown key" + (yaml_source.suggest(path[-1], known) or f"; known: {', '.join(known)}")
    if kind == "missing":
        return path, "missing; it has no default"
    if kind == "literal_error":
        known = problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        suggestion = yaml_source.suggest(str(given), known)
        return path, f"{yaml_source.quote_value(given)} is not one of {', '.join(known)}{suggestion}"
    if kind == "value_error":  # of a validator here
        return path, str(problem["ctx"]["error"])
    if kind in ("model_type", "dict_type"):
        return path, f"expected a mapping of keys to values, got {yaml_source.quote_value(given)}"
    return path, f"{yaml_source.quote_value(given)}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _known_keys(path: yaml_source.KeyPath) -> list[str]:
    """The keys that the section at a path may have."""
    section: type[BaseModel] = Recipe
    for name in path:
        annotation = section.model_fields[name].annotation
        section = next(kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type))
    return list(section.model_fields)


def keys() -> list[str]:
    """Every key that a recipe may have, as the command line writes it."""
    found = []
    for section, known in Recipe.model_fields.items():
        kind = known.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += [f"{section}.{key}" for key in kind.model_fields]
        else:
            found.append(section)
    return found
