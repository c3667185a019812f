"""Determine the names of labels and the order of their ids, from the data or from ``data.label_names``."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from toolkit.recipe.recipe import Recipe

#: Prefix of the name of a probability's column in a predictions file. The name of the label follows it.
PROBABILITY_OF = "probability_"

KEY = "data.label_names"
#: A label that is a whole number, written as text or not.
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


def name_labels(recipe: Recipe, values: Collection[int | str]) -> dict[int | str, str]:
    """Return the name of each stored label, in the order of the ids.

    Args:
        recipe: recipe of the run.
        values: labels of the training split.

    Raises:
        UserError: ``data.label_names`` does not name a label.
    """
    names_in_recipe, are_numbers = recipe.data.label_names, _are_whole(values)
    if names_in_recipe is None:
        return {value: str(value) for value in sorted(values, key=_sort_key(are_numbers=are_numbers))}
    if isinstance(names_in_recipe, list):
        names = (
            {str(index): name for index, name in enumerate(names_in_recipe)}
            if are_numbers
            else {name: name for name in names_in_recipe}
        )
    else:
        names = {label.strip(): name for label, name in names_in_recipe.items()}
    labels_by_text = {str(value): value for value in values}
    _check_all_named(recipe, labels_by_text, names)
    integers = all(isinstance(value, int) for value in values)
    names_by_label: dict[int | str, str] = {}
    for text, name in names.items():
        if text not in labels_by_text:
            if integers and not WHOLE_NUMBER.fullmatch(text):
                message = (
                    f"the data has no label {text}, its labels are whole numbers: {join_names(sorted(labels_by_text))}"
                )
                raise recipe.error((*KEY.split("."), text), message)
            recipe.findings.note(
                f"no row of the train split has the label {text}{f' ({name})' if name != text else ''}"
            )
        names_by_label[labels_by_text.get(text, int(text) if integers else text)] = name
    if isinstance(names_in_recipe, list):
        return names_by_label
    return {
        value: names_by_label[value]
        for value in sorted(names_by_label, key=_sort_key(are_numbers=_are_whole(names_by_label)))
    }


def rename_labels(recipe: Recipe, stored_names: dict[int | str, str]) -> dict[int | str, str]:
    """Return the name of each id, for data whose labels have names, which ``data.label_names`` may change.

    Args:
        recipe: recipe of the run.
        stored_names: names of the labels in the data, by id.

    Raises:
        UserError: ``data.label_names`` does not name exactly these labels.
    """
    new_names = recipe.data.label_names
    if new_names is None:
        return stored_names
    if isinstance(new_names, list):
        if len(new_names) != len(stored_names):
            message = (
                f"{len(new_names)} names; the data has {len(stored_names)} labels: {join_names(stored_names.values())}"
            )
            raise recipe.error(KEY, message)
        new_names = dict(zip(stored_names.values(), new_names, strict=True))
    _check_all_named(recipe, stored_names.values(), new_names)
    if unknown_names := [text for text in new_names if text not in stored_names.values()]:
        message = f"the data has no label of this name; it has {join_names(stored_names.values())}"
        raise recipe.error((*KEY.split("."), unknown_names[0]), message)
    return {index: new_names[name] for index, name in stored_names.items()}


def ids_by_name(label_names: Mapping[int | str, str]) -> tuple[dict[int | str, int], list[str]]:
    """Return the id of each stored label, and the names in the order of the ids.

    Labels with the same name share an id.

    Args:
        label_names: name of each stored label.
    """
    unique = list(dict.fromkeys(label_names.values()))
    positions = {name: index for index, name in enumerate(unique)}
    return {value: positions[name] for value, name in label_names.items()}, unique


def note_similar(recipe: Recipe, names: Sequence[str]) -> None:
    """Note the labels that differ only by capitals, blanks or character encoding, and the key that merges them."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    if similar := [group for group in groups.values() if len(group) > 1]:
        ellipsis = "; ..." * (len(similar) > 3)
        examples = "; ".join(", ".join(map(repr, group[:4])) for group in similar[:3]) + ellipsis
        remedy = f"to join them, give them one name in {KEY} ({{{similar[0][0]}: NAME, {similar[0][1]}: NAME, ...}})"
        recipe.findings.note(
            f"labels that differ only by capitals or blanks are different labels: {examples}; {remedy}"
        )


def join_names(names: Iterable[str], max_names: int = 12) -> str:
    """Join the first names with commas, and append the number of further names."""
    names = list(names)
    return ", ".join(names[:max_names]) + (f" and {len(names) - max_names} more" if len(names) > max_names else "")


def _check_all_named(recipe: Recipe, labels: Iterable[str], names: Mapping[str, str]) -> None:
    """Check that ``data.label_names`` names all labels of the data.

    Args:
        recipe: recipe of the run, for errors.
        labels: labels of the data.
        names: name of each label.
    """
    missing_labels = sorted(label for label in labels if label not in names)
    if missing_labels:
        other_labels = f" (nor {join_names(missing_labels[1:])})" if missing_labels[1:] else ""
        message = (
            f"does not name the label {missing_labels[0]}{other_labels}, which the data has; named: {join_names(names)}"
        )
        raise recipe.error(KEY, message)


def _are_whole(values: Iterable[int | str]) -> bool:
    """Return whether all values are integers or texts of integers."""
    return all(isinstance(value, int) or WHOLE_NUMBER.fullmatch(value) for value in values)


def _sort_key(*, are_numbers: bool) -> Any:
    """Return the sort key of labels: by number if all are whole numbers, and alphabetical otherwise."""
    return (lambda value: (int(value), str(value))) if are_numbers else None
