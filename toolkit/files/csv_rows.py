"""The rows of a csv file, as they are written, and its layout."""

from __future__ import annotations

import codecs
import contextlib
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.files.plain import UnreadableFile
from toolkit.files.text_encoding import opened_text

#: Longest field of a csv file; unclosed quotes end there.
LONGEST_FIELD = 2**26
#: Delimiters of csv files, in the order tried: the first that yields the needed columns, else the comma.
DELIMITERS = (",", ";", "\t", "|")
#: Sentinel after the last line of a csv file: a row of its own unless a quote is open. Not a character.
END = "\ufdd0"


@dataclass(frozen=True)
class Layout:
    """Format of a text file; the delimiter and the line ends are those of csv."""

    delimiter: str = ","
    line_end: str = "\n"
    byte_order_mark: bool = False
    encoding: str = "utf-8"


def csv_layout(path: Path, needed: Sequence[str], delimiter: str | None, encoding: str) -> Layout:
    """Find the layout of a csv file from the arguments, its ending and its first line."""
    with open(path, "rb") as file:
        mark = file.read(3) == codecs.BOM_UTF8
    with opened_text(path, encoding, newline="") as text:
        end = "\r\n" if text.readline().endswith("\r\n") else "\n"
    candidates = [delimiter] if delimiter else ["\t"] if path.suffix.lower() == ".tsv" else DELIMITERS
    for candidate in candidates:
        with contextlib.suppress(UnreadableFile):
            if set(needed) <= set(next(csv_rows(path, candidate, encoding))):
                return Layout(candidate, end, mark, encoding)
    return Layout(candidates[0], end, mark, encoding)


class _CsvLines:
    """The lines of a csv file, and behind them :data:`END`."""

    def __init__(self, file: Iterable[str]) -> None:
        self.ended = False
        #: The row that is being read; 0 for the header.
        self.row = 0
        self._file = file

    def __iter__(self) -> Iterator[str]:
        yield from self._file
        self.ended = True
        yield END


def _place(row: int, line: int) -> str:
    return f"row {row}, line {line}" if row else f"the header, line {line}"


@contextlib.contextmanager
def long_fields() -> Iterator[None]:
    """Let the csv module take fields of up to :data:`LONGEST_FIELD` in the ``with`` block; its limit is
    process-wide."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def csv_rows(path: Path, delimiter: str, encoding: str) -> Iterator[list[str]]:
    """Yield the fields of the header and of each row; all have the same number.

    Raises:
        UnreadableFile: a row differs, or a quote is not closed.
    """
    with long_fields(), opened_text(path, encoding, newline="") as file:
        lines = _CsvLines(file)
        records = csv.reader(lines, delimiter=delimiter)
        width, line = 0, 1
        while True:
            try:
                row = next(records)
            except csv.Error as problem:
                raise UnreadableFile(path, f"{_place(lines.row, line)}: {problem}") from None
            if lines.ended:
                if row != [END]:
                    raise UnreadableFile(path, f"opens a quote in {_place(lines.row, line)} and does not close it")
                break
            blank, begun, line = not row, line, records.line_num + 1
            if blank and width != 1:  # in a single column, an empty line is an empty text
                continue
            row = row or [""]
            if width and len(row) != width:
                found = f"{len(row)} field{'s' if len(row) > 1 else ''}, its header {width}"
                raise UnreadableFile(path, f"has in {_place(lines.row, begun)} {found}")
            width = width or len(row)
            lines.row += 1
            yield row
        if not width:
            raise UnreadableFile(path, "holds nothing but empty lines")
