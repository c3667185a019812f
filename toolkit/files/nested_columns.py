"""Columns inside of columns: ``doc.body`` is what each row has under ``body`` of its ``doc``.

A column that is called ``doc.body`` itself comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset, Features

#: What :func:`reached` gives where there is nothing; a row may well hold None.
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
    """The rows with those of the named columns that are inside of others as columns of that name, at the end."""
    from datasets import concatenate_datasets

    for name in dict.fromkeys(names):
        if name in rows.column_names:
            continue
        for outer in [outer for outer in rows.column_names if name.startswith(f"{outer}.")]:
            inner = rows.select_columns([outer]).flatten()
            if name in inner.column_names:
                rows = concatenate_datasets([rows, inner.select_columns([name])], axis=1)
                break
    return rows


def names_within(features: Features) -> Iterator[str]:
    """The names of all columns; of one that holds others, those of these."""
    for name, kind in features.items():
        if isinstance(kind, dict):
            yield from (f"{name}.{inner}" for inner in names_within(kind))
        else:
            yield name
