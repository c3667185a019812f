"""Choose which splits of a folder or a hub data set are used for training, validation and test."""

from __future__ import annotations

from collections.abc import Collection

from toolkit.errors import UserError
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.yaml_source import suggest

SPLITS = ("train", "validation", "test")


def chosen(
    recipe: Recipe, there: Collection[str], key: str = "data.dataset", owner: str | None = None, what: str = "split"
) -> dict[str, str]:
    """``train``, ``validation`` and ``test`` -> the data's name of the split that is used as such.

    ``data.splits`` names them. One that it sets to null is not used. One that it does not name is the data's split of
    that name, if there is one, not used as another.

    Args:
        there: the names of the splits that the data has.
        key: the recipe's key that says where they are.
        owner: what has them, in a message; None for the data set.
        what: the word for one there.

    Raises:
        UserError: at its line: a split that the data does not have, or that is named twice.
    """
    named = {str(split): name for split, name in (recipe.data.splits or {}).items()}
    used: dict[str, str] = {}
    for split, name in named.items():
        if name is None:
            continue
        if name not in there:
            raise _missing(recipe, f"data.splits.{split}", name, there, owner, what)
        if name in used.values():
            other = next(other for other, known in used.items() if known == name)
            raise recipe.error(f"data.splits.{split}", f"{name} is named as {other} too; set another one, or null")
        used[split] = name
    for split in SPLITS:
        if split not in named and split in there and split not in used.values():
            used[split] = split
    if "train" not in used:
        raise _missing(recipe, "data.splits" if named else key, "train", there, owner, what)
    return {split: used[split] for split in SPLITS if split in used}


def _missing(recipe: Recipe, key: str, name: str, there: Collection[str], owner: str | None, what: str) -> UserError:
    remedy = suggest(name, there) or ("; name one in data.splits: {train: NAME}" if name == "train" else "")
    return recipe.error(key, f"{owner or recipe.data.dataset} has no {what} {name}; it has {', '.join(there)}{remedy}")
