"""The rows of an Excel sheet (.xlsx), as text."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFile
from toolkit.files.packed import ALWAYS_ALLOWED, LARGEST_RATIO


def sheet_rows(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[list[str]]:
    """Yield the names of the columns and the fields of each row of a file's first sheet; empty rows are left out.
    ``columns`` are their names; None for those of the first row. Raises UnreadableFile if it is no such file, or a row
    is wider than the header."""
    import openpyxl

    _check(path)
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        if columns:
            yield list(columns)
        width, number = len(columns or ()), 1 if columns else 0
        for line, cells in enumerate(book.worksheets[0].iter_rows(values_only=True), start=1):
            row = [_text(value) for value in cells]
            while row and not row[-1]:
                row.pop()
            if not row:
                continue
            width = width or len(row)
            if len(row) > width:
                what = f"row {number} has {len(row)} fields and the header {width}"
                raise UnreadableFile(f"{path}:{line}:", f"{what}; empty the cells beyond, or name their columns")
            yield row + [""] * (width - len(row))
            number += 1
        if not width:
            raise UnreadableFile(path, "holds nothing but empty rows in its first sheet")
    finally:
        book.close()


def sheet_names(path: Path) -> list[str]:
    """The names of a file's sheets, in their order."""
    import openpyxl

    _check(path)
    book = openpyxl.load_workbook(path, read_only=True)
    try:
        return list(book.sheetnames)
    finally:
        book.close()


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
