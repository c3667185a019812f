"""The rows of a csv file, as they are written, its delimiter and its layout."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.files.plain import UnreadableFile
from toolkit.files.packed import ending
from toolkit.files.text_encoding import opened_text

#: Longest field of a csv file; unclosed quotes end there.
LONGEST_FIELD = 2**26
#: Delimiters of csv files, in the order tried.
DELIMITERS = (",", ";", "\t", "|")
#: Rows and characters of a file that are read to find its delimiter.
SNIFFED_ROWS, SNIFFED_CHARACTERS = 50, 2**20
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
    """Find the layout of a csv file from the arguments, its ending and its first lines."""
    with open(path, "rb") as file:
        mark = file.read(3) == codecs.BOM_UTF8
    with opened_text(path, encoding, newline="") as text:
        end = "\r\n" if text.readline(SNIFFED_CHARACTERS).endswith("\r\n") else "\n"
    return Layout(delimiter or likely_delimiter(path, encoding, needed), end, mark, encoding)


def usual_delimiter(path: Path) -> str:
    """A tab for .tsv and .tab, else a comma."""
    return "\t" if ending(path) in (".tsv", ".tab") else ","


def likely_delimiter(path: Path, encoding: str, needed: Sequence[str] = (), used: str | None = None) -> str:
    """Find the delimiter of a csv file: one that gives its header the needed columns and its first rows as many fields.

    Args:
        used: the delimiter unless another one gives the needed columns, or several where it gives one; None for the
            best of all, or the usual one where each gives a single column.
    """
    first = used or usual_delimiter(path)
    found = {delimiter: _fit(path, encoding, needed, delimiter) for delimiter in (first, *DELIMITERS)}
    best = max(found, key=lambda delimiter: found[delimiter])
    better = found[best][:2] > found[first][:2] if used else found[best][1]
    return best if better else first


def _fit(path: Path, encoding: str, needed: Sequence[str], delimiter: str) -> tuple[bool, bool, float, int]:
    """Whether the header has the needed columns, and several; the share of rows that are as wide; their width."""
    header, *rows = first_rows(path, delimiter, encoding, SNIFFED_ROWS) or [[]]
    alike = sum(len(row) == len(header) for row in rows) / max(len(rows), 1)
    return set(needed) <= set(header), len(header) > 1, alike, len(header)


def first_rows(path: Path, delimiter: str, encoding: str, count: int) -> list[list[str]]:
    """The header and the rows behind it, ``count`` in all, whatever their width; fewer if they are very long."""
    with opened_text(path, encoding, newline="") as file:
        head = io.StringIO(file.read(SNIFFED_CHARACTERS), newline="")
    rows: list[list[str]] = []
    with long_fields(), contextlib.suppress(csv.Error):
        rows += itertools.islice(filter(None, csv.reader(head, delimiter=delimiter)), count)
    return rows


class _CsvLines:
    """The lines of a csv file, and behind them :data:`END`."""

    def __init__(self, file: Iterable[str]) -> None:
        self.ended = False
        self._file = file

    def __iter__(self) -> Iterator[str]:
        yield from self._file
        self.ended = True
        yield END


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

    Empty fields beyond the header's are dropped, since spreadsheets write them.

    Raises:
        UnreadableFile: a row differs, or a quote is not closed.
    """
    with long_fields(), opened_text(path, encoding, newline="") as file:
        lines = _CsvLines(file)
        records = csv.reader(lines, delimiter=delimiter)
        width, line, number = 0, 1, 0

        def wrong(problem: object) -> UnreadableFile:
            return UnreadableFile(f"{path}:{line}:", f"{f'row {number}' if number else 'the header'} {problem}")

        while True:
            try:
                row = next(records)
            except csv.Error as problem:
                raise wrong(f"cannot be read: {problem}") from None
            if lines.ended:
                if row != [END]:
                    raise wrong("opens a quote and does not close it")
                break
            if not row and width != 1:  # in a single column, an empty line is an empty text
                line = records.line_num + 1
                continue
            row = row or [""]
            if width and len(row) != width:
                if 1 < width < len(row) and not any(row[width:]):
                    del row[width:]
                else:
                    raise wrong(_of_another_width(len(row), width, delimiter))
            width = width or len(row)
            yield row
            line, number = records.line_num + 1, number + 1
        if not width:
            raise UnreadableFile(path, "holds nothing but empty lines")


def _of_another_width(found: int, width: int, delimiter: str) -> str:
    right = f"text that holds {delimiter!r}" if found > width else "text of several lines"
    return f"has {found} field{'s' if found > 1 else ''} and the header {width}; put quotes round a {right}"
