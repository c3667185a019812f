"""The rows of a file of JSON, as they are written: objects one after the other, or one list of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFile
from toolkit.files.text_encoding import opened_text

#: Characters of a JSON file read at a time.
BLOCK = 2**16
#: Deepest nesting of a row. Data stays far below it; pyarrow crashes at some thousands.
DEEPEST = 200
#: The column of texts that are not in a table.
TEXT = "text"


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def json_rows(path: Path, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the text and the value of each object of a file: JSON lines, or one list. A text in a list is a row of it.

    Raises:
        UnreadableFile: anything else.
    """
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
            if opened and isinstance(row, str):
                row, written = {TEXT: row}, f'{{"{TEXT}": {written}}}'
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


def _is_deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_is_deeper(item, depth - 1) for item in inner)


def _is_final(problem: ValueError, text: str) -> bool:
    """Whether invalid JSON stays invalid whatever follows: the fault is not at its end, nor is a string cut there."""
    if not isinstance(problem, json.JSONDecodeError):
        return True
    return not problem.msg.startswith("Unterminated string") and problem.pos < len(text) - len("-Infinity")
