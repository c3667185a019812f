"""Nested columns: ``doc.body`` names the value ``body`` in the column ``doc`` of each row.

A column whose own name is ``doc.body`` takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset, Features

#: Result of :func:`get_nested_value` for a missing value; None is a valid value.
MISSING: Any = object()


def get_nested_value(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a row for a column name that may have dots; :data:`MISSING` if the row lacks it."""
    if name in row:
        return row[name]
    for key, inner_row in row.items():
        if isinstance(inner_row, Mapping) and name.startswith(f"{key}."):
            nested_value = get_nested_value(inner_row, name[len(key) + 1 :])
            if nested_value is not MISSING:
                return nested_value
    return MISSING


def append_nested_columns(rows: Dataset, names: Iterable[str]) -> Dataset:
    """Return the rows with the named nested columns appended as separate columns."""
    from datasets import concatenate_datasets

    missing_names = [name for name in dict.fromkeys(names) if name not in rows.column_names]
    parts = [rows]
    for outer in rows.column_names:
        if inner_names := [name for name in missing_names if name.startswith(f"{outer}.")]:
            flattened_rows = rows.select_columns([outer]).flatten()
            flat_names = [name for name in inner_names if name in flattened_rows.column_names]
            parts += [flattened_rows.select_columns(flat_names)] if flat_names else []
            missing_names = [name for name in missing_names if name not in flat_names]
    return concatenate_datasets(parts, axis=1) if len(parts) > 1 else rows


def flatten_columns(rows: Dataset) -> Dataset:
    """Return the rows with each nested column replaced by its inner columns, named with dots."""
    nested_names = [name for name, feature in rows.features.items() if isinstance(feature, dict)]
    return append_nested_columns(rows, list_innermost_columns(rows.features)).remove_columns(nested_names)


def read_column(rows: Dataset, name: str) -> list[Any]:
    """Return the values of a column.

    ``rows[name]`` would copy the types of all columns, which takes 5 seconds for 2,000 columns.
    """
    if rows._indices is not None:  # a selection of other rows
        return rows.select_columns([name])[:][name]
    return rows.data.column(name).to_pylist()


def list_innermost_columns(features: Features) -> Iterator[str]:
    """Yield the names of all columns; a nested column is replaced by its innermost columns."""
    for name, feature in features.items():
        if isinstance(feature, dict):
            yield from (f"{name}.{inner}" for inner in list_innermost_columns(feature))
        else:
            yield name
