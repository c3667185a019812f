"""Rows of a table that is one JSON object: by columns, as ``DataFrame.to_json`` writes it, or by names of rows."""

from __future__ import annotations

from typing import Any


def rows_of(value: Any) -> list[dict[str, Any]] | None:
    """Return the rows of an object that is a table; None of another.

    It is ``{column: [value, ...]}``, or as pandas writes it ``{column: {row: value}}``, ``{row: {column: value}}``
    (rows of any names) or ``{"columns": [...], "data": [[value, ...], ...]}``.
    """
    if not isinstance(value, dict) or len(value) < 2:
        return None
    if value.keys() - {"index"} == {"columns", "data"}:
        rows, columns = value["data"], value["columns"]
        fits = isinstance(rows, list) and isinstance(columns, list) and all(isinstance(name, str) for name in columns)
        if fits and all(isinstance(row, list) and len(row) == len(columns) for row in rows):
            return [dict(zip(columns, row, strict=True)) for row in rows]
    inner = list(value.values())
    if all(isinstance(one, list) for one in inner) and inner[0] and len({len(one) for one in inner}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*inner, strict=True)]
    if all(isinstance(one, dict) and one and one.keys() == inner[0].keys() for one in inner):
        if not all(name.isdecimal() for name in inner[0]):
            return inner
        return [{column: values[row] for column, values in value.items()} for row in inner[0]]
    return None
