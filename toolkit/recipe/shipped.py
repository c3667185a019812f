"""The recipes that ship: where they are, what each says of itself, a copy of one to change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import UserError
from toolkit.files.whole import write_text
from toolkit.recipe.yaml_source import SHIPPED as FOLDER
from toolkit.recipe.yaml_source import suggest

#: The two lines of a recipe's first comment that say what it is.
DESCRIPTION = re.compile(r"^# Does: (?P<does>.+)\n# Needs: (?P<needs>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class RecipeFile:
    """A recipe that ships.

    Attributes:
        name: of the file, without its ending.
        does, needs: in a few words, from its first comment.
    """

    name: str
    does: str
    needs: str


def shipped() -> list[RecipeFile]:
    """Return the recipes that ship, those that need nothing first. Raises UserError if the installation has none."""
    found = [_described(path) for path in sorted(FOLDER.glob("*.yaml"))]
    if not found:
        raise UserError(f"{FOLDER}: holds no recipes; reinstall the toolkit")
    return sorted(found, key=lambda recipe: recipe.needs != "nothing")


def copy_recipe(name: str, target: Path | None) -> Path:
    """Copy a recipe that ships.

    Args:
        name: with or without ``.yaml``.
        target: a file that is not there yet, or a folder; None for the current folder.

    Raises:
        UserError: no recipe is called so, something is at the target's place, or its folder is missing.
        WriteFailed: the system refuses it.
    """
    known = [recipe.name for recipe in shipped()]
    plain = name.removesuffix(".yaml")
    if plain not in known:
        raise UserError(f"{name}: no such recipe{suggest(plain, known)}; `toolkit recipe list` shows all")
    path = target or Path()
    path = new_file(path / f"{plain}.yaml" if path.is_dir() else path)
    write_text(path, (FOLDER / f"{plain}.yaml").read_text(encoding="utf-8"))
    return path


def new_file(path: Path) -> Path:
    """The path, if a file can be made there. Raises UserError if something is there already, or its folder is not."""
    try:
        path.lstat()
    except FileNotFoundError:
        if path.parent.is_dir():
            return path
        raise UserError(f"{path}: there is no folder {path.parent}; make it first") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no file can be made there: {getattr(error, 'strerror', error)}") from None
    raise UserError(f"{path}: exists and is not overwritten; name another file")


def _described(path: Path) -> RecipeFile:
    found = DESCRIPTION.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise UserError(f"{path}: its first comment should say '# Does: ...' and '# Needs: ...'")
    return RecipeFile(path.stem, **found.groupdict())
