"""The rows of an Excel sheet (.xlsx), as text."""

from __future__ import annotations

import datetime
import itertools
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFile
from toolkit.files.packed import ALWAYS_ALLOWED, LARGEST_RATIO

#: First rows of a sheet by which its table is found.
HEAD_ROWS = 20


@dataclass(frozen=True)
class SheetTable:
    """Where the table of an Excel file is.

    Attributes:
        names: of all sheets, in their order.
        index: of the sheet that is read.
        titles: cells of the rows above the table's header, which are not read.
        first_line: line of the table's first row, from 1.
    """

    names: list[str]
    index: int
    titles: list[str]
    first_line: int

    @property
    def notes(self) -> list[str]:
        """What was chosen, a line each; empty if the table begins in the first row of the only sheet."""
        notes = []
        if len(self.names) > 1:
            sheets = f"{self.names[self.index]} of {len(self.names)} ({', '.join(self.names[:4])})"
            notes.append(f"the sheet {sheets} is read; to read another, save it as csv")
        if self.titles:
            what = (
                f"{len(self.titles)} rows above it are left out"
                if len(self.titles) > 1
                else "the row above it is left out"
            )
            notes.append(f"the table begins in row {self.first_line}; {what} ({self.titles[0]:.40})")
        return notes


def sheet_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[list[str]]:
    """Yield the names of the columns and the fields of each row of a file's table; empty rows are left out.

    The table is in the first sheet that has a header and rows. Titles above it are left out, too.

    Args:
        columns: names of the columns; None for those of the first row. A first row of these names is left out.

    Raises:
        UnreadableFile: it is no such file, or a row is wider than the header.
    """
    import openpyxl

    _check(path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        found = _find_table(book)
        if columns:
            yield list(columns)
        width, number = len(columns or ()), 1 if columns else 0
        for line, row in _lines(book.worksheets[found.index]):
            if line < found.first_line or (line == found.first_line and _are_names(row, columns)):
                continue
            width = width or len(row)
            if len(row) > width:
                named = f"{width} columns are named" if columns else f"the header {width}"
                what = f"row {number} has {len(row)} fields and {named}"
                raise UnreadableFile(f"{path}:{line}:", f"{what}; empty the cells beyond, or name their columns")
            yield row + [""] * (width - len(row))
            number += 1
        if not width:
            raise UnreadableFile(path, "holds nothing but empty rows in its first sheet")
    finally:
        book.close()


def sheet_table(path: Path) -> SheetTable:
    """Find the table of a file; raises as :func:`sheet_rows`."""
    import openpyxl

    _check(path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        return _find_table(book)
    finally:
        book.close()


def _find_table(book: Any) -> SheetTable:
    """Find the table of a file: in the first sheet whose rows are not far fewer than those of another.

    A sheet with a header and a row of several columns precedes others.
    """
    names, found = [sheet.title for sheet in book.worksheets], []
    for index, sheet in enumerate(book.worksheets):
        head = list(itertools.islice(_lines(sheet), HEAD_ROWS))
        count = _count_titles(head)
        titles = [" ".join(filter(None, row)) for _, row in head[:count]]
        rows = len(head) - count
        is_table = rows > 1 and len(head[count][1]) > 1
        found.append((is_table, rows, SheetTable(names, index, titles, head[count][0] if head else 1)))
    best = max((is_table, rows) for is_table, rows, _ in found)
    return next(table for is_table, rows, table in found if is_table == best[0] and 2 * rows >= best[1])


def _count_titles(head: Sequence[tuple[int, list[str]]]) -> int:
    """Return how many of a sheet's first rows are above its table.

    A title is narrower than the table, and a blank row follows on the last; or each fills at most half of the columns,
    of which there are three or more. Another narrow row might be a header that lacks a name.
    """
    widths = Counter(len(row) for _, row in head)
    width = max(widths, key=lambda size: (widths[size], size), default=0)
    count = next((place for place, (_, row) in enumerate(head) if len(row) == width and all(row)), 0)
    above = [row for _, row in head[:count]]
    if not above:
        return 0
    is_apart = head[count][0] > head[count - 1][0] + 1 and all(len(row) < width for row in above)
    are_small = width > 2 and all(2 * sum(map(bool, row)) <= width for row in above)
    return count if is_apart or are_small else 0


def _are_names(row: Sequence[str], columns: Sequence[str] | None) -> bool:
    return columns is not None and [name.strip() for name in row] == [name.strip() for name in columns]


def _lines(sheet: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of each row that is not empty, without empty cells at its end."""
    for line, cells in enumerate(sheet.iter_rows(values_only=True), start=1):
        row = [_text(value) for value in cells]
        while row and not row[-1]:
            row.pop()
        if row:
            yield line, row


def _check(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            if "xl/workbook.xml" not in archive.namelist():
                raise zipfile.BadZipFile
            size = sum(member.file_size for member in archive.infolist())
    except zipfile.BadZipFile:
        raise UnreadableFile(path, "is no sheet of Excel (.xlsx); save it as one, or as csv") from None
    if size > max(ALWAYS_ALLOWED, LARGEST_RATIO * path.stat().st_size):
        wrong = f"says more than {LARGEST_RATIO} times its own size, {size >> 20:,} MiB; unpack it"
        raise UnreadableFile(path, f"{wrong}, and see what is in it")


def _text(value: Any) -> str:
    """A cell as Excel shows it, but for a number's format."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
