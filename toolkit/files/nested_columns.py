"""Nested columns: ``doc.body`` is what each row has under ``body`` of its ``doc``.

A column named ``doc.body`` itself takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset, Features

#: Result of :func:`reached` for a missing value; a row may well hold None.
MISSING: Any = object()


def reached(row: Mapping[str, Any], name: str) -> Any:
    """The value of a row under a name with dots; :data:`MISSING` where it has none."""
    if name in row:
        return row[name]
    for key, inner in row.items():
        if isinstance(inner, Mapping) and name.startswith(f"{key}."):
            found = reached(inner, name[len(key) + 1 :])
            if found is not MISSING:
                return found
    return MISSING


def opened(rows: Dataset, names: Iterable[str]) -> Dataset:
    """Return the rows with the named columns that are nested in others appended as columns of that name."""
    from datasets import concatenate_datasets

    wanted = [name for name in dict.fromkeys(names) if name not in rows.column_names]
    parts = [rows]
    for outer in rows.column_names:
        if inside := [name for name in wanted if name.startswith(f"{outer}.")]:
            flat = rows.select_columns([outer]).flatten()
            found = [name for name in inside if name in flat.column_names]
            parts += [flat.select_columns(found)] if found else []
            wanted = [name for name in wanted if name not in found]
    return concatenate_datasets(parts, axis=1) if len(parts) > 1 else rows


def flatten_columns(rows: Dataset) -> Dataset:
    """Return the rows with each nested column replaced by the columns inside, under their names with dots."""
    nested_names = [name for name, kind in rows.features.items() if isinstance(kind, dict)]
    return opened(rows, names_within(rows.features)).remove_columns(nested_names)


def values_of(rows: Dataset, name: str) -> list[Any]:
    """Return a column's values. ``rows[name]`` copies the types of all columns: of 2,000, that takes 5 seconds."""
    if rows._indices is not None:  # chosen from others
        return rows.select_columns([name])[:][name]
    return rows.data.column(name).to_pylist()


def names_within(features: Features) -> Iterator[str]:
    """Yield the names of all columns; for nested ones, the innermost."""
    for name, kind in features.items():
        if isinstance(kind, dict):
            yield from (f"{name}.{inner}" for inner in names_within(kind))
        else:
            yield name
