"""The recipes that the toolkit ships: their descriptions, and copies of them for the user."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import UserError
from toolkit.files.whole import write_text
from toolkit.recipe.yaml_source import RECIPES_DIR, suggest

#: Pattern of the two lines in the first comment of a recipe that describe it.
DESCRIPTION = re.compile(r"^# Does: (?P<does>.+)\n# Needs: (?P<needs>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class RecipeFile:
    """A recipe that the toolkit ships.

    Attributes:
        name: name of the file without ``.yaml``.
        does: purpose of the recipe, from its first comment.
        needs: requirements of the recipe, from its first comment.
    """

    name: str
    does: str
    needs: str


def shipped_recipes() -> list[RecipeFile]:
    """Return the recipes that the toolkit ships, sorted so that recipes without requirements come first.

    Raises:
        UserError: the installation has no recipes.
    """
    recipes = [_read_description(path) for path in sorted(RECIPES_DIR.glob("*.yaml"))]
    if not recipes:
        raise UserError(f"{RECIPES_DIR}: holds no recipes; reinstall the toolkit")
    return sorted(recipes, key=lambda recipe: recipe.needs != "nothing")


def copy_recipe(name: str, target: Path | None) -> Path:
    """Copy a recipe that the toolkit ships, and return the path of the copy.

    Args:
        name: name of the recipe, with or without ``.yaml``.
        target: new file, or an existing folder; None for the current folder.

    Raises:
        UserError: the recipe does not exist, the target exists already, or its folder is missing.
        WriteError: the system cannot write the file.
    """
    known_names = [recipe.name for recipe in shipped_recipes()]
    base_name = name.removesuffix(".yaml")
    if base_name not in known_names:
        raise UserError(f"{name}: no such recipe{suggest(base_name, known_names)}; `toolkit recipe list` shows all")
    path = target or Path()
    path = new_file(path / f"{base_name}.yaml" if path.is_dir() else path)
    write_text(path, (RECIPES_DIR / f"{base_name}.yaml").read_text(encoding="utf-8"))
    return path


def new_file(path: Path) -> Path:
    """Return the path after checking that a new file can be created there.

    Raises:
        UserError: the path exists already, or its folder is missing.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        if path.parent.is_dir():
            return path
        raise UserError(f"{path}: there is no folder {path.parent}; make it first") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no file can be made there: {getattr(error, 'strerror', error)}") from None
    raise UserError(f"{path}: exists and is not overwritten; name another file")


def _read_description(path: Path) -> RecipeFile:
    """Return a shipped recipe's name and the description in its first comment."""
    match = DESCRIPTION.search(path.read_text(encoding="utf-8"))
    if match is None:
        raise UserError(f"{path}: its first comment should say '# Does: ...' and '# Needs: ...'")
    return RecipeFile(path.stem, **match.groupdict())
