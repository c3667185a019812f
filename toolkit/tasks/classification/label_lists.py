"""Several labels per text, as data hold them: a list, a list written into a cell, labels with a separator between
them, or a column of 0 and 1 for each label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.files.written_values import value_of
from toolkit.recipe.recipe import Recipe, settled

if TYPE_CHECKING:
    from datasets import Dataset

KEY = "data.label"
#: What a cell of a column for one label says, as it is written.
YES, NO = {"1", "1.0", "true"}, {"0", "0.0", "false"}
#: Separators that a message proposes.
USUAL = (",", ";", "|")


def label_lists(recipe: Recipe, split: str, rows: Dataset) -> list[list[Any]]:
    """Return the labels of each row; of columns of 0 and 1, their places in ``data.label``.

    Raises:
        UserError: a cell that holds anything else, at ``data.label``.
    """
    if isinstance(recipe.data.label, list):
        return _of_columns(recipe, split, rows)
    (column,) = recipe.data.label_columns
    found = []
    for number, value in enumerate(rows.select_columns([column])[:][column], 1):
        labels = _of_cell(value, recipe.data.label_separator)
        if not isinstance(labels, list) or not all(isinstance(v, int | str) and v != "" for v in labels):
            right = 'a list of words or of whole numbers, as JSON writes them: ["a", "b"]'
            likely = next((mark for mark in USUAL if isinstance(value, str) and mark in value), None)
            right += f'; or set data.label_separator: "{likely}"' if likely else ""
            raise recipe.error(
                KEY, f"row {number} of the {split} split has {value!r} as its {column}; it should be {right}"
            )
        found.append(labels)
    return found


def _of_cell(value: Any, separator: str | None) -> Any:
    if separator is None or isinstance(value, list):
        labels = value_of(value) if isinstance(value, str) else value
        return [one.strip() if isinstance(one, str) else one for one in labels] if isinstance(labels, list) else labels
    parts = ("" if value is None else str(value)).split(separator)
    return [part.strip() for part in parts if part.strip()]


def _of_columns(recipe: Recipe, split: str, rows: Dataset) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in range(len(rows))]
    for place, column in enumerate(recipe.data.label_columns):
        for number, value in enumerate(rows.select_columns([column])[:][column], 1):
            written = str(value).strip().lower()
            if written not in YES | NO:
                wrong = f"row {number} of the {split} split has {value!r} as its {column}"
                raise recipe.error(KEY, f"{wrong}; it should be 0 or 1, as data.label names several columns")
            if written in YES:
                found[number - 1].append(place)
    return found


def check_label_lists(recipe: Recipe) -> None:
    """Refuse several columns, or a separator, for data with one label per text.

    Raises:
        UserError: at the key to change.
    """
    data, several = recipe.data, recipe.data.problem_type == "multi_label"
    if isinstance(data.label, list) and not several:
        raise recipe.error(KEY, "several columns are for problem_type: multi_label; set it, or name one column")
    if data.label_separator is None:
        return
    if not several:
        raise recipe.error("data.label_separator", "is for problem_type: multi_label; set it, or remove this")
    if isinstance(data.label, list):
        raise recipe.error("data.label_separator", "is for one column of labels, and data.label names several")


def own_names(recipe: Recipe, train: Dataset) -> list[str] | None:
    """The names that the data give the labels, in the order of their ids; None if the labels are their own names."""
    if isinstance(recipe.data.label, list):
        return recipe.data.label
    return getattr(getattr(train.features[settled(recipe.data.label)], "feature", None), "names", None)
