"""The rows of a file of JSON, as they are written: objects one after the other, one list of them, a list for each
split, or a table as one object (:mod:`toolkit.files.json_columns`). A row may be a list, too: its columns are named as
those of csv without a header."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFile
from toolkit.files.json_columns import rows_of
from toolkit.files.packed import ending
from toolkit.files.text_encoding import opened_text

#: Characters of a JSON file read at a time.
BLOCK = 2**16
#: Deepest nesting of a row. Data stays far below it; pyarrow crashes at some thousands.
DEEPEST = 200
#: Endings of files with a row on each line: one alone is a row, though it may look like a table.
LINES = (".jsonl", ".ndjson")
#: The column of texts that are not in a table.
TEXT = "text"
#: The column of the names of the lists, where a file has several.
SPLIT = "split"


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def json_rows(path: Path, encoding: str, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the text and the value of each object of a file: JSON lines, one list, an object of lists, or a table. A
    text in a list is a row of it. ``columns`` name those of rows that are lists; None for ``column1`` and so on. Raises
    UnreadableFile for anything else."""
    decoder = json.JSONDecoder(parse_constant=_refused)
    with opened_text(path, encoding, newline="") as file:
        text = file.read(BLOCK)
        opened = re.match(r"\s*\[", text)
        between = re.compile(r"[\s,]*" if opened else r"\s*")
        place, counted, line, number = opened.end() if opened else 0, 0, 1, 1

        def wrong(problem: object) -> UnreadableFile:
            return UnreadableFile(f"{path}:{line}:", f"row {number} {problem}")

        while True:
            place = between.match(text, place).end()  # type: ignore[union-attr]
            line, counted = line + text.count("\n", counted, place), place
            if place == len(text) or (opened and text[place] == "]"):
                more = file.read(BLOCK)
                if not more:
                    break
                text, place, counted = text[place:] + more, 0, 0
                continue
            try:
                row, end = decoder.raw_decode(text, place)
            except RecursionError:
                raise wrong("is nested too deeply") from None
            except ValueError as problem:
                more = "" if _is_final(problem, text) else file.read(max(BLOCK, len(text) - place))
                if not more:
                    raise wrong(f"is not JSON: {getattr(problem, 'msg', problem)}") from None
                text, place, counted = text[place:] + more, 0, 0
                continue
            written = text[place:end]
            if number == 1 and not opened and (lists := _lists_in(path, row)):
                while not text[end:].strip() and (more := file.read(BLOCK)):
                    text += more
                if not text[end:].strip():
                    yield from _of_lists(path, lists, columns)
                    return
            if opened and isinstance(row, str):
                row, written = {TEXT: row}, f'{{"{TEXT}": {written}}}'
            if isinstance(row, list):
                columns = columns or column_names(len(row))
                row, written = _named(row, columns, wrong)
            if not isinstance(row, dict):
                raise wrong("is no JSON object")
            if written.count("[") + written.count("{") > DEEPEST and _is_deeper(row, DEEPEST):
                raise wrong("is nested too deeply")
            yield written, row
            place, number = end, number + 1
        if opened and text[place : place + 1] != "]":
            raise UnreadableFile(path, f"ends within the list of its rows, after row {number - 1}")
        if text[place + 1 :].strip():
            raise UnreadableFile(path, "goes on behind the list of its rows")


def column_names(count: int) -> list[str]:
    """Return names for columns that have none."""
    return [f"column{number}" for number in range(1, count + 1)]


def _named(
    row: list[Any], columns: Sequence[str], wrong: Callable[[str], UnreadableFile]
) -> tuple[dict[str, Any], str]:
    if len(row) != len(columns):
        raise wrong(f"has {len(row)} values and {len(columns)} columns are named ({', '.join(columns)})")
    named = dict(zip(columns, row, strict=True))
    return named, json.dumps(named, ensure_ascii=False)


def _lists_in(path: Path, value: Any) -> dict[str, list[Any]]:
    """Return the lists of rows of a file's one object, by their names; none of an object that is a row."""
    if isinstance(value, dict) and all(isinstance(rows, list) for rows in value.values()):
        kinds = {type(row) for rows in value.values() for row in rows}
        if kinds in ({list}, {dict}):
            return value
    rows = None if ending(path) in LINES else rows_of(value)
    return {TEXT: rows} if rows else {}


def _of_lists(
    path: Path, lists: dict[str, list[Any]], columns: Sequence[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of several lists, as :func:`json_rows`, each with the name of its list as its :data:`SPLIT`."""
    for name, rows in lists.items():
        for number, row in enumerate(rows, start=1):

            def wrong(problem: str, place: str = f"row {number} of {name}") -> UnreadableFile:
                return UnreadableFile(path, f"{place} {problem}")

            if isinstance(row, list):
                columns = columns or column_names(len(row))
                row, _ = _named(row, columns, wrong)
            if _is_deeper(row, DEEPEST):
                raise wrong("is nested too deeply")
            row = {SPLIT: name, **row} if len(lists) > 1 else row
            yield json.dumps(row, ensure_ascii=False), row


def _is_deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_is_deeper(item, depth - 1) for item in inner)


def _is_final(problem: ValueError, text: str) -> bool:
    """Whether invalid JSON stays invalid whatever follows: the fault is not at its end, nor is a string cut there."""
    if not isinstance(problem, json.JSONDecodeError):
        return True
    return not problem.msg.startswith("Unterminated string") and problem.pos < len(text) - len("-Infinity")
