"""Read several labels per text from a list, a list written as text, a separated text, or a column for each label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.files.written_values import parse_value
from toolkit.recipe.recipe import Recipe, require_setting

if TYPE_CHECKING:
    from datasets import Dataset

KEY = "data.label"
#: Texts of a cell in a column for a single label: the row has the label, or it does not.
YES, NO = {"1", "1.0", "true"}, {"0", "0.0", "false"}
#: Separators that an error message suggests.
COMMON_SEPARATORS = (",", ";", "|")


def label_lists(recipe: Recipe, split_name: str, rows: Dataset) -> list[list[Any]]:
    """Return the labels of each row. For columns of 0 and 1, a label is its index in ``data.label``.

    Raises:
        UserError: a cell contains anything else; the error names ``data.label``.
    """
    if isinstance(recipe.data.label, list):
        return _labels_from_columns(recipe, split_name, rows)
    (column,) = recipe.data.label_columns
    rows_of_labels = []
    for number, value in enumerate(rows.select_columns([column])[:][column], 1):
        labels = _parse_cell(value, recipe.data.label_separator)
        if not isinstance(labels, list) or not all(isinstance(v, int | str) and v != "" for v in labels):
            expectation = 'a list of words or of whole numbers, as JSON writes them: ["a", "b"]'
            separator = next((mark for mark in COMMON_SEPARATORS if isinstance(value, str) and mark in value), None)
            expectation += f'; or set data.label_separator: "{separator}"' if separator else ""
            raise recipe.error(
                KEY, f"row {number} of the {split_name} split has {value!r} as its {column}; it should be {expectation}"
            )
        rows_of_labels.append(labels)
    return rows_of_labels


def _parse_cell(value: Any, separator: str | None) -> Any:
    """Return the labels in a cell of a table as a list; another value is returned for the caller to reject.

    Args:
        value: value of the cell: a list, or its text.
        separator: text between two labels; None if the cell holds a list.
    """
    if separator is None or isinstance(value, list):
        labels = parse_value(value) if isinstance(value, str) else value
        return (
            [label.strip() if isinstance(label, str) else label for label in labels]
            if isinstance(labels, list)
            else labels
        )
    parts = ("" if value is None else str(value)).split(separator)
    return [part.strip() for part in parts if part.strip()]


def _labels_from_columns(recipe: Recipe, split_name: str, rows: Dataset) -> list[list[Any]]:
    """Return the ids of each row's labels from columns of 0 and 1, one column for each label.

    Args:
        recipe: recipe of the run.
        split_name: name of the split, for errors.
        rows: rows of the split.
    """
    rows_of_labels: list[list[Any]] = [[] for _ in range(len(rows))]
    for index, column in enumerate(recipe.data.label_columns):
        for number, value in enumerate(rows.select_columns([column])[:][column], 1):
            text = str(value).strip().lower()
            if text not in YES | NO:
                problem = f"row {number} of the {split_name} split has {value!r} as its {column}"
                raise recipe.error(KEY, f"{problem}; it should be 0 or 1, as data.label names several columns")
            if text in YES:
                rows_of_labels[number - 1].append(index)
    return rows_of_labels


def check_label_lists(recipe: Recipe) -> None:
    """Reject several label columns, or a label separator, for data with one label per text.

    Raises:
        UserError: a key is wrong; the error names its line.
    """
    data, is_multi_label = recipe.data, recipe.data.problem_type == "multi_label"
    if isinstance(data.label, list) and not is_multi_label:
        raise recipe.error(KEY, "several columns are for problem_type: multi_label; set it, or name one column")
    if data.label_separator is None:
        return
    if not is_multi_label:
        raise recipe.error("data.label_separator", "is for problem_type: multi_label; set it, or remove this")
    if isinstance(data.label, list):
        raise recipe.error("data.label_separator", "is for one column of labels, and data.label names several")


def stored_names(recipe: Recipe, train: Dataset) -> list[str] | None:
    """Return the label names that the data store, in the order of the ids; None if the labels are names themselves."""
    if isinstance(recipe.data.label, list):
        return recipe.data.label
    return getattr(getattr(train.features[require_setting(recipe.data.label)], "feature", None), "names", None)
