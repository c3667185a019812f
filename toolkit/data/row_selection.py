"""Select rows, and assign them to splits, by a column: ``data.filter``, ``data.split_column``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features

from toolkit.data.splits import chosen
from toolkit.errors import UserError
from toolkit.files.nested_columns import MISSING, get_nested_value, list_innermost_columns
from toolkit.recipe.recipe import Recipe

SPLIT_COLUMN = "data.split_column"


def filtered(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Keep the rows that have, in each column of ``data.filter``, one of its values.

    A value is compared as it is written: the number 1 and the text 1 are the same, and so are true and ``true``.

    Raises:
        UserError: a column that the data lacks or that holds no plain values, or a split of which no row is left.
    """
    wanted = recipe.data.filter or {}
    if not wanted:
        return splits
    found = DatasetDict()
    for split, rows in splits.items():
        kept = np.ones(len(rows), dtype=bool)
        for column, values in wanted.items():
            key = ("data", "filter", column)
            texts = _as_texts(recipe, key, split, rows, column)
            accepted = _accepted(values)
            here = np.array([text in accepted for text in texts], dtype=bool)
            if len(rows) and not here.any():
                there = ", ".join(map(str, list(dict.fromkeys(texts))[:8]))
                raise recipe.error(key, f"no row of the {split} split has this value; there are {there}")
            kept &= here
        if len(rows) and not kept.any():
            raise recipe.error("data.filter", f"no row of the {split} split has all of these values")
        recipe.found.note(f"data.filter keeps {kept.sum()} of {len(rows)} {split} rows")
        found[split] = rows.select(np.flatnonzero(kept))
    return found


def row_filter(recipe: Recipe, split: str, features: Features | None) -> Callable[[Mapping[str, Any]], bool]:
    """Return a test for single rows: whether a row has the values of ``data.filter``, as :func:`filtered`.

    Args:
        features: of the rows, as far as they are known.

    Raises:
        UserError: a column that the data lacks; while rows are looked at, one that holds no plain values.
    """
    wanted = {column: _accepted(values) for column, values in (recipe.data.filter or {}).items()}
    known_kinds: Mapping[str, Any] = features or {}
    for column in wanted if features is not None else ():
        if get_nested_value(known_kinds, column) is MISSING:
            known = ", ".join(list_innermost_columns(features))
            raise recipe.error(("data", "filter", column), f"no column {column} in the {split} split; it has {known}")

    def text_of(row: Mapping[str, Any], column: str) -> str | None:
        value, kind = get_nested_value(row, column), get_nested_value(known_kinds, column)
        if value is MISSING or value is None:
            return None
        if isinstance(kind, ClassLabel):
            return None if value == -1 else kind.int2str(value)
        if isinstance(value, list | dict):
            raise _no_value(recipe, ("data", "filter", column), split, column, value)
        return _text(value)

    return lambda row: all(text_of(row, column) in accepted for column, accepted in wanted.items())


def split_by_column(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Divide the data's one split by the values of ``data.split_column``; ``data.splits`` says which is which. Raises
    UserError if the data has splits of its own, or lacks the column, or one of the values that are named."""
    column = recipe.data.split_column
    if column is None:
        return splits
    if len(splits) > 1:
        own = ", ".join(splits)
        raise recipe.error(SPLIT_COLUMN, f"the data has the splits {own} of its own, which this would mix; remove it")
    ((name, rows),) = splits.items()
    texts = _as_texts(recipe, ("data", "split_column"), name, rows, column)
    there = [str(text) for text in dict.fromkeys(texts) if text is not None]
    used = chosen(recipe, there, SPLIT_COLUMN, f"the column {column}", "row of the split")
    parts = {split: np.flatnonzero([text == value for text in texts]) for split, value in used.items()}
    if left := len(rows) - sum(map(len, parts.values())):
        recipe.found.note(f"{left} of {len(rows)} rows are of no split that is used ({column}) and are left out")
    return DatasetDict({split: rows.select(places) for split, places in parts.items()})


def _as_texts(recipe: Recipe, key: tuple[str, ...], split: str, rows: Dataset, column: str) -> Sequence[str | None]:
    """The values of a column as they are written; None where there is none."""
    if column not in rows.column_names:
        known = ", ".join(list_innermost_columns(rows.features))
        raise recipe.error(key, f"no column {column} in the {split} split; it has {known}")
    kind = rows.features[column]
    values = rows.select_columns([column])[:][column]
    if isinstance(kind, ClassLabel):
        return [None if value in (None, -1) else kind.int2str(value) for value in values]
    if strange := next((value for value in values if isinstance(value, list | dict)), None):
        raise _no_value(recipe, key, split, column, strange)
    return [_text(value) for value in values]


def _no_value(recipe: Recipe, key: tuple[str, ...], split: str, column: str, value: Any) -> UserError:
    wrong = f"the column {column} of the {split} split holds {value!r}"
    return recipe.error(key, f"{wrong}; it should hold words, numbers, or true and false")


def _accepted(values: Any) -> set[str | None]:
    """The texts of one value of ``data.filter``, or of a list of them."""
    return {_text(value) for value in (values if isinstance(values, list) else [values])}


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
