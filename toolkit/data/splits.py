"""Choose which splits of a folder or a hub data set are used for training, validation and test."""

from __future__ import annotations

from collections.abc import Collection

from toolkit.errors import UserError
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.yaml_source import suggest

SPLITS = ("train", "validation", "test")


def choose_splits(
    recipe: Recipe,
    available_splits: Collection[str],
    key: str = "data.dataset",
    owner: str | None = None,
    split_noun: str = "split",
) -> dict[str, str]:
    """Return a mapping from ``train``, ``validation`` and ``test`` to the data's name of the split.

    ``data.splits`` names the splits. A split that it sets to null is not used. If it does not name a split, the data's
    split of the same name is used, unless this is already used as another split.

    Args:
        recipe: recipe with the data section.
        available_splits: names of the splits that the data has.
        key: recipe key that names the source of the splits.
        owner: source of the splits, for messages; None for the name of the data set.
        split_noun: noun for a split, for messages.

    Raises:
        UserError: a split is missing from the data, or is named twice.
    """
    name_by_split = {str(split_name): name for split_name, name in (recipe.data.splits or {}).items()}
    chosen_names: dict[str, str] = {}
    for split_name, name in name_by_split.items():
        if name is None:
            continue
        if name not in available_splits:
            raise _build_split_error(recipe, f"data.splits.{split_name}", name, available_splits, owner, split_noun)
        if name in chosen_names.values():
            other_split = next(other_split for other_split, other_name in chosen_names.items() if other_name == name)
            raise recipe.error(
                f"data.splits.{split_name}", f"{name} is named as {other_split} too; set another one, or null"
            )
        chosen_names[split_name] = name
    for split_name in SPLITS:
        if (
            split_name not in name_by_split
            and split_name in available_splits
            and split_name not in chosen_names.values()
        ):
            chosen_names[split_name] = split_name
    if "train" not in chosen_names:
        raise _build_split_error(
            recipe, "data.splits" if name_by_split else key, "train", available_splits, owner, split_noun
        )
    return {split_name: chosen_names[split_name] for split_name in SPLITS if split_name in chosen_names}


def _build_split_error(
    recipe: Recipe, key: str, name: str, available_splits: Collection[str], owner: str | None, split_noun: str
) -> UserError:
    """Return the error for a split that the data set does not have.

    Args:
        recipe: recipe of the run.
        key: recipe key to name in the error.
        name: name of the missing split.
        available_splits: names of the existing splits.
        owner: name of the object that has the splits; None for the data set.
        split_noun: word for a split in the message.
    """
    remedy = suggest(name, available_splits) or ("; name one in data.splits: {train: NAME}" if name == "train" else "")
    return recipe.error(
        key, f"{owner or recipe.data.dataset} has no {split_noun} {name}; it has {', '.join(available_splits)}{remedy}"
    )
