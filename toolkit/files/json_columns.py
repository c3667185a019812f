"""Rows of a table that is a single JSON object, in one of the forms that ``DataFrame.to_json`` writes."""

from __future__ import annotations

from typing import Any


def find_table_rows(value: Any) -> list[dict[str, Any]] | None:
    """Return the rows of a JSON object that is a table; None for another object.

    A table is ``{column: [value, ...]}``, ``{column: {row: value}}``, ``{row: {column: value}}`` with any row names,
    or ``{"columns": [...], "data": [[value, ...], ...]}``. pandas writes the last three.
    """
    if not isinstance(value, dict) or len(value) < 2:
        return None
    if value.keys() - {"index"} == {"columns", "data"}:
        rows, columns = value["data"], value["columns"]
        is_split_table = (
            isinstance(rows, list) and isinstance(columns, list) and all(isinstance(name, str) for name in columns)
        )
        if is_split_table and all(isinstance(row, list) and len(row) == len(columns) for row in rows):
            return [dict(zip(columns, row, strict=True)) for row in rows]
    parts = list(value.values())
    if all(isinstance(part, list) for part in parts) and parts[0] and len({len(part) for part in parts}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*parts, strict=True)]
    if all(isinstance(part, dict) and part and part.keys() == parts[0].keys() for part in parts):
        if not all(name.isdecimal() for name in parts[0]):
            return parts
        return [{column: values[row] for column, values in value.items()} for row in parts[0]]
    return None
