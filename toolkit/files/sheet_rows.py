"""The rows of an Excel sheet (.xlsx), as text."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFile
from toolkit.files.packed import ALWAYS_ALLOWED, LARGEST_RATIO

#: Number of first rows of a sheet among which the beginning of its table is searched.
HEAD_ROWS = 20
#: Rows of a sheet of Excel.
MAX_ROWS = 2**20
#: Rows that are read together.
ROWS_AT_A_TIME = 256
#: Most empty cells at the ends of all rows: they are nothing but formatting, and take as long to read as others.
MAX_EMPTY_CELLS = 2**24
#: Unpacked bytes of a part, such as the styles, that are allowed however well it is packed.
PART_ALLOWED = 2**22


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
        columns: names of the columns; None to read them from the first row. A first row with these names is left out.

    Raises:
        UnreadableFile: the file is not a sheet of Excel, or a row is wider than the header.
    """
    with _opened_book(path) as book:
        table = _find_table(path, book)
        if columns:
            yield list(columns)
        width, number = len(columns or ()), 1 if columns else 0
        for line, row in _lines(path, book.worksheets[table.index]):
            if line < table.first_line or (line == table.first_line and _are_names(row, columns)):
                continue
            width = width or len(row)
            if len(row) > width:
                named_columns = f"{width} columns are named" if columns else f"the header {width}"
                what = f"row {number} has {len(row)} fields and {named_columns}"
                raise UnreadableFile(f"{path}:{line}:", f"{what}; empty the cells beyond, or name their columns")
            yield row + [""] * (width - len(row))
            number += 1
        if not width:
            raise UnreadableFile(path, "holds nothing but empty rows in its first sheet")


def sheet_table(path: Path) -> SheetTable:
    """Find the table of a file; raises as :func:`sheet_rows`."""
    with _opened_book(path) as book:
        return _find_table(path, book)


def _find_table(path: Path, book: Any) -> SheetTable:
    """Find the table of a file, in the first sheet that has at least half as many rows as any other sheet.

    A sheet with a header and a row of several columns precedes others.
    """
    if not book.worksheets:
        raise UnreadableFile(path, "has no sheet with cells; save the table as one, or as csv")
    names, candidates = [sheet.title for sheet in book.worksheets], []
    for index, sheet in enumerate(book.worksheets):
        head = list(itertools.islice(_lines(path, sheet), HEAD_ROWS))
        count = _count_titles(head)
        titles = [" ".join(filter(None, row)) for _, row in head[:count]]
        rows = len(head) - count
        is_table = rows > 1 and len(head[count][1]) > 1
        candidates.append((is_table, rows, SheetTable(names, index, titles, head[count][0] if head else 1)))
    best = max((is_table, rows) for is_table, rows, _ in candidates)
    return next(table for is_table, rows, table in candidates if is_table == best[0] and 2 * rows >= best[1])


def _count_titles(head: Sequence[tuple[int, list[str]]]) -> int:
    """Return how many of a sheet's first rows are above its table.

    Titles are narrower than the table, and a blank row follows the last title. Without a blank row, the table has at
    least three columns and each title fills at most half of them. Another narrow row might be a header that lacks a
    name.
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


def _lines(path: Path, sheet: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of each row that is not empty, without empty cells at its end.

    Raises:
        UnreadableFile: the sheet is damaged, or claims to hold more than a sheet can.
    """
    max_characters = max(ALWAYS_ALLOWED, LARGEST_RATIO * path.stat().st_size)
    num_rows, num_empty, num_characters = 0, 0, 0
    rows = sheet.iter_rows(values_only=True)
    while True:
        with _errors_of_openpyxl(path):
            chunk = list(itertools.islice(rows, ROWS_AT_A_TIME))
        if not chunk:
            return
        for line, cells in enumerate(chunk, start=num_rows + 1):
            if not cells:  # openpyxl makes one for each number that no row has
                continue
            if line > MAX_ROWS:
                raise UnreadableFile(f"{path}:{line}:", f"a sheet of Excel ends at row {MAX_ROWS:,}; save it again")
            last = next((place for place in range(len(cells), 0, -1) if cells[place - 1] not in (None, "")), 0)
            row = [_text(value) for value in cells[:last]]
            num_empty += len(cells) - last
            num_characters += sum(map(len, row))
            if num_empty > MAX_EMPTY_CELLS:
                wrong = f"has more than {MAX_EMPTY_CELLS:,} empty cells"
                raise UnreadableFile(path, f"{wrong}; delete the columns and rows beyond the table")
            if num_characters > max_characters:
                wrong = f"says more than {LARGEST_RATIO} times its own size by row {line}; see what is in it"
                raise UnreadableFile(path, wrong)
            if row:
                yield line, row
        num_rows += len(chunk)
        if num_rows > MAX_ROWS:
            raise UnreadableFile(path, f"has a row beyond {MAX_ROWS:,}, where a sheet of Excel ends; save it again")


@contextlib.contextmanager
def _opened_book(path: Path) -> Iterator[Any]:
    """Open a file's workbook; only its sheets with cells are read."""
    from openpyxl.reader.excel import ExcelReader

    class CellReader(ExcelReader):
        """Reader of sheets with cells; a fault in another part of the file does not matter."""

        def read_chartsheet(self, sheet: Any, rel: Any) -> None:
            pass

        read_properties = read_custom = read_theme = lambda self: None

    _check(path)
    with open(path, "rb") as file:
        with _errors_of_openpyxl(path):
            reader = CellReader(file, read_only=True, data_only=True, keep_links=False)
            reader.read()
        try:
            yield reader.wb
        finally:
            reader.wb.close()


@contextlib.contextmanager
def _errors_of_openpyxl(path: Path) -> Iterator[None]:
    """Raise an UnreadableFile for whatever openpyxl and the libraries below it raise; show none of their warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UnreadableFile(path, f"is a damaged sheet of Excel ({reason}); save it again, or as csv") from None


def _check(path: Path) -> None:
    """Check that a file is a zip archive with a workbook, and unpacks to a size that memory can hold.

    Raises:
        UnreadableFile: it is not.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if "xl/workbook.xml" not in archive.namelist():
                raise zipfile.BadZipFile
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError):
        raise UnreadableFile(path, "is no sheet of Excel (.xlsx); save it as one, or as csv") from None
    size = sum(member.file_size for member in members)
    bombs = [
        part.file_size for part in members if part.file_size > max(PART_ALLOWED, LARGEST_RATIO * part.compress_size)
    ]
    if bombs or size > max(ALWAYS_ALLOWED, LARGEST_RATIO * path.stat().st_size):
        wrong = f"says more than {LARGEST_RATIO} times its own size, {max([*bombs, size]) >> 20:,} MiB; unpack it"
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
