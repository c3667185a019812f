"""The rows of a JSON file, with uninterpreted values.

The file holds a sequence of objects, a list of objects, an object with a list for each split, or a table as a single
object (:mod:`toolkit.files.json_columns`). A row may also be a list; then its columns are named as in a csv file
without a header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFileError
from toolkit.files.compression import content_ending
from toolkit.files.json_columns import find_table_rows
from toolkit.files.text_encoding import open_text

#: Characters of a JSON file read at a time.
BLOCK_CHARACTERS = 2**16
#: Most levels of nesting in a row. Real data has far fewer; pyarrow crashes at some thousands.
MAX_DEPTH = 200
#: Endings of files with a row on each line; a single object in them is a row, not a table.
JSON_LINES_ENDINGS = (".jsonl", ".ndjson")
#: Name of the column for texts that are not in a table.
TEXT_COLUMN = "text"
#: Name of the column with the name of each row's list, if a file has several lists.
SPLIT_COLUMN = "split"


def _reject_constant(constant: str) -> None:
    """Reject ``NaN`` and ``Infinity``, which JSON does not allow."""
    raise ValueError(f"{constant} is no number of JSON")


def read_json_rows(
    path: Path, encoding: str, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON text and the value of each row of a file.

    Args:
        path: JSON file; a text in a list is a row with a single column.
        encoding: encoding of the file.
        columns: column names for rows that are lists; None for ``column1``, ``column2`` and so on.

    Raises:
        UnreadableFileError: the file has another form, or a row is not valid JSON.
    """
    decoder = json.JSONDecoder(parse_constant=_reject_constant)
    with open_text(path, encoding, newline="") as file:
        text = file.read(BLOCK_CHARACTERS)
        list_start = re.match(r"\s*\[", text)
        separator = re.compile(r"[\s,]*" if list_start else r"\s*")
        position, counted_up_to, line, number = list_start.end() if list_start else 0, 0, 1, 1

        def row_error(reason: object) -> UnreadableFileError:
            return UnreadableFileError(f"{path}:{line}:", f"row {number} {reason}")

        while True:
            position = separator.match(text, position).end()  # type: ignore[union-attr]
            line, counted_up_to = line + text.count("\n", counted_up_to, position), position
            if position == len(text) or (list_start and text[position] == "]"):
                next_block = file.read(BLOCK_CHARACTERS)
                if not next_block:
                    break
                text, position, counted_up_to = text[position:] + next_block, 0, 0
                continue
            try:
                row, end = decoder.raw_decode(text, position)
            except RecursionError:
                raise row_error("is nested too deeply") from None
            except ValueError as error:
                next_block = (
                    "" if _is_definite_error(error, text) else file.read(max(BLOCK_CHARACTERS, len(text) - position))
                )
                if not next_block:
                    raise row_error(f"is not JSON: {getattr(error, 'msg', error)}") from None
                text, position, counted_up_to = text[position:] + next_block, 0, 0
                continue
            row_text = text[position:end]
            if number == 1 and not list_start and (lists := _find_row_lists(path, row)):
                while not text[end:].strip() and (next_block := file.read(BLOCK_CHARACTERS)):
                    text += next_block
                if not text[end:].strip():
                    yield from _read_row_lists(path, lists, columns)
                    return
            if list_start and isinstance(row, str):
                row, row_text = {TEXT_COLUMN: row}, f'{{"{TEXT_COLUMN}": {row_text}}}'
            if isinstance(row, list):
                columns = columns or default_column_names(len(row))
                row, row_text = _name_values(row, columns, row_error)
            if not isinstance(row, dict):
                raise row_error("is no JSON object")
            if row_text.count("[") + row_text.count("{") > MAX_DEPTH and _exceeds_depth(row, MAX_DEPTH):
                raise row_error("is nested too deeply")
            yield row_text, row
            position, number = end, number + 1
        if list_start and text[position : position + 1] != "]":
            raise UnreadableFileError(path, f"ends within the list of its rows, after row {number - 1}")
        if text[position + 1 :].strip():
            raise UnreadableFileError(path, "goes on behind the list of its rows")


def default_column_names(count: int) -> list[str]:
    """Return the names ``column1``, ``column2`` and so on for columns without names."""
    return [f"column{number}" for number in range(1, count + 1)]


def _name_values(
    values: list[Any], columns: Sequence[str], row_error: Callable[[str], UnreadableFileError]
) -> tuple[dict[str, Any], str]:
    """Return a row that is a list as a mapping from column to value, and the same row as JSON text.

    Args:
        values: values of the row.
        columns: names of the columns.
        row_error: function that makes the error for a row of another length, given its reason.
    """
    if len(values) != len(columns):
        raise row_error(f"has {len(values)} values and {len(columns)} columns are named ({', '.join(columns)})")
    named_row = dict(zip(columns, values, strict=True))
    return named_row, json.dumps(named_row, ensure_ascii=False)


def _find_row_lists(path: Path, value: Any) -> dict[str, list[Any]]:
    """Return the lists of rows in the only object of a file, by name; empty if the object is itself a row."""
    if isinstance(value, dict) and all(isinstance(rows, list) for rows in value.values()):
        kinds = {type(row) for rows in value.values() for row in rows}
        if kinds in ({list}, {dict}):
            return value
    rows = None if content_ending(path) in JSON_LINES_ENDINGS else find_table_rows(value)
    return {TEXT_COLUMN: rows} if rows else {}


def _read_row_lists(
    path: Path, lists: dict[str, list[Any]], columns: Sequence[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON text and the value of each row; with several lists, :data:`SPLIT_COLUMN` has the list's name."""
    for name, rows in lists.items():
        for number, row in enumerate(rows, start=1):

            def row_error(problem: str, row_place: str = f"row {number} of {name}") -> UnreadableFileError:
                return UnreadableFileError(path, f"{row_place} {problem}")

            if isinstance(row, list):
                columns = columns or default_column_names(len(row))
                row, _ = _name_values(row, columns, row_error)
            if _exceeds_depth(row, MAX_DEPTH):
                raise row_error("is nested too deeply")
            row = {SPLIT_COLUMN: name, **row} if len(lists) > 1 else row
            yield json.dumps(row, ensure_ascii=False), row


def _exceeds_depth(value: Any, depth: int) -> bool:
    """Return whether lists and mappings are nested more than ``depth`` levels deep in a value."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_exceeds_depth(item, depth - 1) for item in children)


def _is_definite_error(error: ValueError, text: str) -> bool:
    """Return whether JSON stays invalid if more text is read: the error is neither at its end nor in a cut string."""
    if not isinstance(error, json.JSONDecodeError):
        return True
    return not error.msg.startswith("Unterminated string") and error.pos < len(text) - len("-Infinity")
