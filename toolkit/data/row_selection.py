"""Select rows by the values of columns (``data.filter``), and assign them to splits (``data.split_column``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features

from toolkit.data.splits import choose_splits
from toolkit.errors import UserError
from toolkit.files.nested_columns import MISSING, get_nested_value, list_innermost_columns
from toolkit.recipe.recipe import Recipe

SPLIT_COLUMN_KEY = "data.split_column"


def filter_rows(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Return the rows that have one of the accepted values in each column of ``data.filter``.

    Values are compared as text: the number 1 equals the text ``1``, and true equals ``true``.

    Raises:
        UserError: a column is missing or has nested values, or the filter accepts no row of a split.
    """
    accepted_values = recipe.data.filter or {}
    if not accepted_values:
        return splits
    filtered_splits = DatasetDict()
    for split_name, rows in splits.items():
        keep_mask = np.ones(len(rows), dtype=bool)
        for column, values in accepted_values.items():
            key = ("data", "filter", column)
            texts = _column_texts(recipe, key, split_name, rows, column)
            accepted_texts = _accepted_texts(values)
            matches = np.array([text in accepted_texts for text in texts], dtype=bool)
            if len(rows) and not matches.any():
                present_values = ", ".join(map(str, list(dict.fromkeys(texts))[:8]))
                raise recipe.error(key, f"no row of the {split_name} split has this value; there are {present_values}")
            keep_mask &= matches
        if len(rows) and not keep_mask.any():
            raise recipe.error("data.filter", f"no row of the {split_name} split has all of these values")
        recipe.findings.note(f"data.filter keeps {keep_mask.sum()} of {len(rows)} {split_name} rows")
        filtered_splits[split_name] = rows.select(np.flatnonzero(keep_mask))
    return filtered_splits


def make_row_filter(recipe: Recipe, split_name: str, features: Features | None) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that returns whether ``data.filter`` accepts a row, as in :func:`filter_rows`.

    Args:
        recipe: recipe with the filter.
        split_name: name of the split, for messages.
        features: features of the rows; None if they are unknown.

    Raises:
        UserError: a column is missing; the returned function raises it for a nested value.
    """
    accepted_texts = {column: _accepted_texts(values) for column, values in (recipe.data.filter or {}).items()}
    known_kinds: Mapping[str, Any] = features or {}
    for column in accepted_texts if features is not None else ():
        if get_nested_value(known_kinds, column) is MISSING:
            known_columns = ", ".join(list_innermost_columns(features))
            raise recipe.error(
                ("data", "filter", column), f"no column {column} in the {split_name} split; it has {known_columns}"
            )

    def text_of(row: Mapping[str, Any], column: str) -> str | None:
        value, kind = get_nested_value(row, column), get_nested_value(known_kinds, column)
        if value is MISSING or value is None:
            return None
        if isinstance(kind, ClassLabel):
            return None if value == -1 else kind.int2str(value)
        if isinstance(value, list | dict):
            raise _build_value_error(recipe, ("data", "filter", column), split_name, column, value)
        return _format_value(value)

    return lambda row: all(text_of(row, column) in column_texts for column, column_texts in accepted_texts.items())


def split_by_column(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Divide the only split of the data by the values of ``data.split_column``, which ``data.splits`` assigns.

    Raises:
        UserError: the data has several splits, or lacks the column or one of the assigned values.
    """
    column = recipe.data.split_column
    if column is None:
        return splits
    if len(splits) > 1:
        split_names = ", ".join(splits)
        raise recipe.error(
            SPLIT_COLUMN_KEY, f"the data has the splits {split_names} of its own, which this would mix; remove it"
        )
    ((name, rows),) = splits.items()
    texts = _column_texts(recipe, ("data", "split_column"), name, rows, column)
    present_values = [str(text) for text in dict.fromkeys(texts) if text is not None]
    value_by_split = choose_splits(recipe, present_values, SPLIT_COLUMN_KEY, f"the column {column}", "row of the split")
    indices_by_split = {
        split_name: np.flatnonzero([text == value for text in texts]) for split_name, value in value_by_split.items()
    }
    if num_unused := len(rows) - sum(map(len, indices_by_split.values())):
        recipe.findings.note(
            f"{num_unused} of {len(rows)} rows are of no split that is used ({column}) and are left out"
        )
    return DatasetDict({split_name: rows.select(row_indices) for split_name, row_indices in indices_by_split.items()})


def _column_texts(
    recipe: Recipe, key_path: tuple[str, ...], split_name: str, rows: Dataset, column: str
) -> Sequence[str | None]:
    """Return the values of a column as text, with None for missing values.

    Args:
        recipe: recipe of the run.
        key_path: recipe key to name in errors, part by part.
        split_name: split of the recipe.
        rows: rows of the split.
        column: name of the column.
    """
    if column not in rows.column_names:
        known_columns = ", ".join(list_innermost_columns(rows.features))
        raise recipe.error(key_path, f"no column {column} in the {split_name} split; it has {known_columns}")
    kind = rows.features[column]
    values = rows.select_columns([column])[:][column]
    if isinstance(kind, ClassLabel):
        return [None if value in (None, -1) else kind.int2str(value) for value in values]
    if nested_value := next((value for value in values if isinstance(value, list | dict)), None):
        raise _build_value_error(recipe, key_path, split_name, column, nested_value)
    return [_format_value(value) for value in values]


def _build_value_error(
    recipe: Recipe, key_path: tuple[str, ...], split_name: str, column: str, value: Any
) -> UserError:
    """Return the error for a value of a type that cannot select rows.

    Args:
        recipe: recipe of the run.
        key_path: recipe key to name in the error, part by part.
        split_name: split of the row.
        column: column of the value.
        value: the value.
    """
    problem = f"the column {column} of the {split_name} split holds {value!r}"
    return recipe.error(key_path, f"{problem}; it should hold words, numbers, or true and false")


def _accepted_texts(values: Any) -> set[str | None]:
    """Return the texts of the accepted value, or list of accepted values, of a column in ``data.filter``."""
    return {_format_value(value) for value in (values if isinstance(values, list) else [values])}


def _format_value(value: Any) -> str | None:
    """Return a value as text, with ``true`` and ``false`` for booleans and None for a missing value."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
