"""The rows of an Excel sheet (.xlsx), with all cells as text."""

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

from models.files.plain import UnreadableFileError
from toolkit.files.compression import ALWAYS_ALLOWED_BYTES, MAX_RATIO

#: First rows of a sheet that may precede its table.
HEAD_ROWS = 20
#: Most rows of an Excel sheet.
MAX_ROWS = 2**20
#: Rows that are read together.
ROWS_AT_A_TIME = 256
#: Most empty cells at the ends of all rows together; they hold only formatting, but take as long to read as others.
MAX_EMPTY_CELLS = 2**24
#: Unpacked bytes that are allowed for any part of the file, such as the styles.
ALWAYS_ALLOWED_PART_BYTES = 2**22


@dataclass(frozen=True)
class SheetTable:
    """Position of the table in an Excel file.

    Attributes:
        names: names of all sheets, in order.
        index: index of the sheet that is read.
        titles: texts of the rows above the table's header, which are not read.
        first_line: line of the table's first row, from 1.
    """

    names: list[str]
    index: int
    titles: list[str]
    first_line: int

    @property
    def notes(self) -> list[str]:
        """Notes about the chosen sheet and first row; empty if the table begins in the first row of the only sheet."""
        notes = []
        if len(self.names) > 1:
            names = [f"{name:.40}" for name in (self.names[self.index], *self.names[:4])]
            sheets = f"{names[0]} of {len(self.names)} ({', '.join(names[1:])})"
            notes.append(f"the sheet {sheets} is read; to read another, save it as csv")
        if self.titles:
            left_out = (
                f"{len(self.titles)} rows above it are left out"
                if len(self.titles) > 1
                else "the row above it is left out"
            )
            notes.append(f"the table begins in row {self.first_line}; {left_out} ({self.titles[0]:.40})")
        return notes


def read_sheet_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[list[str]]:
    """Yield the column names, then the fields of each row of an Excel file's table.

    The table is in the first sheet that has a header and rows. Titles above it and empty rows are left out.

    Args:
        path: Excel file.
        columns: names of the columns; None to read them from the first row. A first row with these names is left out.

    Raises:
        UnreadableFileError: the file is not a sheet of Excel, or a row is wider than the header.
    """
    with _open_workbook(path) as book:
        table = _find_table(path, book)
        if columns:
            yield list(columns)
        width, row_number = len(columns or ()), 1 if columns else 0
        for line, row in _read_lines(path, book.worksheets[table.index]):
            if line < table.first_line or (line == table.first_line and _has_column_names(row, columns)):
                continue
            width = width or len(row)
            if len(row) > width:
                named_columns = f"{width} columns are named" if columns else f"the header {width}"
                message = f"row {row_number} has {len(row)} fields and {named_columns}"
                raise UnreadableFileError(
                    f"{path}:{line}:", f"{message}; empty the cells beyond, or name their columns"
                )
            yield row + [""] * (width - len(row))
            row_number += 1
        if not width:
            raise UnreadableFileError(path, "holds nothing but empty rows in its first sheet")


def find_sheet_table(path: Path) -> SheetTable:
    """Return the position of the table in an Excel file.

    Raises:
        UnreadableFileError: the file is not a sheet of Excel.
    """
    with _open_workbook(path) as book:
        return _find_table(path, book)


def _find_table(path: Path, book: Any) -> SheetTable:
    """Return the position of the table, in the first sheet that has at least half as many rows as any other sheet.

    A sheet with a header and a row of several columns precedes others.
    """
    if not book.worksheets:
        raise UnreadableFileError(path, "has no sheet with cells; save the table as one, or as csv")
    names, candidates = [sheet.title for sheet in book.worksheets], []
    for index, sheet in enumerate(book.worksheets):
        head = list(itertools.islice(_read_lines(path, sheet), HEAD_ROWS))
        num_titles = _count_titles(head)
        titles = [" ".join(filter(None, row)) for _, row in head[:num_titles]]
        num_rows = len(head) - num_titles
        is_table = num_rows > 1 and len(head[num_titles][1]) > 1
        candidates.append((is_table, num_rows, SheetTable(names, index, titles, head[num_titles][0] if head else 1)))
    best = max((is_table, num_rows) for is_table, num_rows, _ in candidates)
    return next(table for is_table, num_rows, table in candidates if is_table == best[0] and 2 * num_rows >= best[1])


def _count_titles(head: Sequence[tuple[int, list[str]]]) -> int:
    """Return how many of the first rows of a sheet are above its table.

    Titles are narrower than the table, and a blank row follows the last title. Without a blank row, the table has at
    least three columns and each title fills at most half of them. Another narrow row might be a header that lacks a
    name.
    """
    widths = Counter(len(row) for _, row in head)
    width = max(widths, key=lambda row_width: (widths[row_width], row_width), default=0)
    num_above = next((index for index, (_, row) in enumerate(head) if len(row) == width and all(row)), 0)
    rows_above = [row for _, row in head[:num_above]]
    if not rows_above:
        return 0
    is_apart = head[num_above][0] > head[num_above - 1][0] + 1 and all(len(row) < width for row in rows_above)
    are_small = width > 2 and all(2 * sum(map(bool, row)) <= width for row in rows_above)
    return num_above if is_apart or are_small else 0


def _has_column_names(cells: Sequence[str], columns: Sequence[str] | None) -> bool:
    """Return whether a row holds the column names, and not values."""
    return columns is not None and [name.strip() for name in cells] == [name.strip() for name in columns]


def _read_lines(path: Path, sheet: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not empty, without empty cells at its end.

    Raises:
        UnreadableFileError: the sheet is damaged, or claims to hold more than a sheet can.
    """
    max_characters = max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * path.stat().st_size)
    num_rows, num_empty, num_characters = 0, 0, 0
    rows = sheet.iter_rows(values_only=True)
    while True:
        with _convert_openpyxl_errors(path):
            chunk = list(itertools.islice(rows, ROWS_AT_A_TIME))
        if not chunk:
            return
        for line, cells in enumerate(chunk, start=num_rows + 1):
            if not cells:  # openpyxl yields an empty row for each missing line number
                continue
            if line > MAX_ROWS:
                raise UnreadableFileError(
                    f"{path}:{line}:", f"a sheet of Excel ends at row {MAX_ROWS:,}; save it again"
                )
            num_filled = next(
                (position for position in range(len(cells), 0, -1) if cells[position - 1] not in (None, "")), 0
            )
            row = [_format_cell(value) for value in cells[:num_filled]]
            num_empty += len(cells) - num_filled
            num_characters += sum(map(len, row))
            if num_empty > MAX_EMPTY_CELLS:
                message = f"has more than {MAX_EMPTY_CELLS:,} empty cells"
                raise UnreadableFileError(path, f"{message}; delete the columns and rows beyond the table")
            if num_characters > max_characters:
                message = f"says more than {MAX_RATIO} times its own size by row {line}; see what is in it"
                raise UnreadableFileError(path, message)
            if row:
                yield line, row
        num_rows += len(chunk)
        if num_rows > MAX_ROWS:
            raise UnreadableFileError(
                path, f"has a row beyond {MAX_ROWS:,}, where a sheet of Excel ends; save it again"
            )


@contextlib.contextmanager
def _open_workbook(path: Path) -> Iterator[Any]:
    """Open a file's workbook; only its sheets with cells are read."""
    from openpyxl.reader.excel import ExcelReader

    class CellReader(ExcelReader):
        """Reader of sheets with cells; a fault in another part of the file does not matter."""

        def read_chartsheet(self, sheet: Any, rel: Any) -> None:
            pass

        read_properties = read_custom = read_theme = lambda self: None

    _check(path)
    with open(path, "rb") as file:
        with _convert_openpyxl_errors(path):
            reader = CellReader(file, read_only=True, data_only=True, keep_links=False)
            reader.read()
        try:
            yield reader.wb
        finally:
            reader.wb.close()


@contextlib.contextmanager
def _convert_openpyxl_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of openpyxl and its libraries to UnreadableFileError, and suppress their warnings."""
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
        raise UnreadableFileError(path, f"is a damaged sheet of Excel ({reason}); save it again, or as csv") from None


def _check(path: Path) -> None:
    """Check that a file is a zip archive with a workbook, and unpacks to a size that memory can hold.

    Raises:
        UnreadableFileError: it is not.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if "xl/workbook.xml" not in archive.namelist():
                raise zipfile.BadZipFile
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError):
        raise UnreadableFileError(path, "is no sheet of Excel (.xlsx); save it as one, or as csv") from None
    unpacked_bytes = sum(member.file_size for member in members)
    bomb_sizes = [
        part.file_size
        for part in members
        if part.file_size > max(ALWAYS_ALLOWED_PART_BYTES, MAX_RATIO * part.compress_size)
    ]
    if bomb_sizes or unpacked_bytes > max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * path.stat().st_size):
        mebibytes = max([*bomb_sizes, unpacked_bytes]) >> 20
        message = f"says more than {MAX_RATIO} times its own size, {mebibytes:,} MiB; unpack it"
        raise UnreadableFileError(path, f"{message}, and see what is in it")


def _format_cell(value: Any) -> str:
    """Return the text of a cell as Excel shows it, except for number formats."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
