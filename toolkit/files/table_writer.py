"""Writing a file's rows to another one, with columns added; the values read stay unchanged."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from models.port.tokenization import representable
from toolkit.errors import UserError
from toolkit.files.csv_rows import Layout, usual_delimiter
from toolkit.files.kinds import kind_of
from toolkit.files.packed import ending
from toolkit.files.strict_json import finite
from toolkit.files.tables import Rows, Table, as_array
from toolkit.machine.disk import explain_write_errors, find_write_obstacle
from toolkit.machine.scratch import scratch_folder

#: Endings of files that are written.
WRITABLE_ENDINGS = (".csv", ".tsv", ".xlsx", ".jsonl", ".json", ".parquet")
#: Type of a column -> its parquet type; lists are written as JSON.
TYPES = {str: pa.string(), float: pa.float64(), int: pa.int64(), list: pa.string()}


#: First characters of a cell that a spreadsheet would evaluate as a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


#: A number with a sign, which a spreadsheet shows as it is.
NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")

#: The most that a sheet of Excel holds.
MAX_SHEET_ROWS, MAX_CELL_CHARACTERS = 2**20, 2**15 - 1
#: A number as Excel shows it, of at most so many characters: it keeps 15 digits.
SHEET_NUMBER, MAX_DIGITS = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?"), 15


class Writer(Protocol):
    """Writes one chunk of rows after the other.

    Attributes:
        formulas: number of text cells in csv that begin like a formula.
    """

    formulas: int

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        """Write rows with the values of the added columns, a sequence for each column."""


def check_target(target: Path, source: Path, overwrite: bool) -> None:
    """Check that a file can be written, before the work for it is done. Raises UserError for an ending that holds no
    columns, a file that exists and may not be overwritten or is the input, or a folder that is missing or not
    writable."""
    if kind_of(target) == "text":
        raise UserError(f"{target}: a text file has no columns; end it in {', '.join(WRITABLE_ENDINGS)}")
    if target.suffix.lower() not in WRITABLE_ENDINGS:
        raise UserError(f"{target}: is not of a kind that is written; end it in {', '.join(WRITABLE_ENDINGS)}")
    if target.is_dir():
        raise UserError(f"{target}: is a folder, where a file is to be written")
    if os.path.lexists(target) and os.path.lexists(source) and target.resolve() == source.resolve():
        raise UserError(f"{target}: is the input; choose another output")
    if os.path.lexists(target) and not overwrite:
        raise UserError(f"{target}: exists; choose another output, or add --overwrite")
    if not target.parent.is_dir():
        raise UserError(f"{target}: there is no folder {target.parent}; make it first")
    if (problem := find_write_obstacle(target.parent)) is not None:
        raise UserError(f"{target}: its folder {target.parent} {problem}")


@contextlib.contextmanager
def table_writer(
    target: Path, table: Table, added_types: Mapping[str, type], overwrite: bool = False, quoted: bool = False
) -> Iterator[Writer]:
    """Return a writer of ``target``, which appears after the ``with`` block, and only if nothing was raised in it:
    a process killed at any moment leaves nothing.

    Args:
        target: a file that passed :func:`check_target`.
        added_types: name -> type of each added column.
        quoted: in csv, put an apostrophe before what begins like a formula, so that spreadsheets show it as text.

    Raises:
        UserError: the table has values that a file of this kind cannot hold, or a file has come to the target's place.
        toolkit.machine.disk.WriteError: the system refused it.
    """
    kind = kind_of(target)
    with (
        explain_write_errors(target, resumes=False),
        scratch_folder(".toolkit-", parent_folder=target.parent) as scratch,
    ):
        unfinished = scratch / "rows"
        if kind == "parquet":
            with pq.ParquetWriter(unfinished, _schema(table, added_types)) as parquet:
                yield _Parquet(parquet)
        elif kind == "xlsx":
            sheet = _Xlsx(target, [*table.names, *added_types])
            yield sheet
            sheet.save(unfinished)
        else:
            layout = _layout_of(target, table)
            encoding = "utf-8-sig" if kind == "csv" and layout.byte_order_mark else "utf-8"
            with open(unfinished, "w", encoding=encoding, newline="") as file:
                if kind == "csv":
                    yield _Csv(file, layout, [*table.names, *added_types], quoted)
                else:
                    json_writer = _Json(file, list(added_types), in_list=target.suffix.lower() == ".json")
                    yield json_writer
                    json_writer.end()
        _to_disk(unfinished)
        if os.path.lexists(target) and not overwrite:
            raise UserError(f"{target}: was created meanwhile; choose another output, or add --overwrite")
        os.replace(unfinished, target)


def _to_disk(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


# -- csv ------------------------------------------------------------------------------------------------------------


def _layout_of(target: Path, table: Table) -> Layout:
    """Return the layout of a csv file: that of the input, with the delimiter of its own ending."""
    read, alike = table.layout, ending(table.path) == ending(target)
    return Layout(read.delimiter if alike else usual_delimiter(target), read.line_end, read.byte_order_mark)


class _Csv:
    def __init__(self, file: IO[str], layout: Layout, names: Sequence[str], quoted: bool) -> None:
        self.formulas, self._quoted = 0, quoted
        self._rows = csv.writer(file, delimiter=layout.delimiter, lineterminator=layout.line_end)
        self._rows.writerow(map(self._field, names))

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        columns = [*(rows.column(index) for index in range(len(rows.names))), *added_columns]
        for row in zip(*columns, strict=True):
            self._rows.writerow(map(self._field, row))

    def _field(self, value: Any) -> str:
        field = _field(value)
        if not field.startswith(FORMULA) or not isinstance(value, str) or NUMBER.fullmatch(field):
            return field
        self.formulas += 1
        return f"'{field}" if self._quoted else field


def _field(value: Any) -> str:
    """Format a csv field: empty for None, JSON for what is no text or number."""
    if isinstance(value, str):
        return representable(value)
    if value is None:
        return ""
    if isinstance(value, (bool, list, dict, tuple, bytes)):
        return representable(_json(value))
    return str(value)


# -- JSON -----------------------------------------------------------------------------------------------------------


class _Json:
    """JSON lines, or one list. A row that was JSON stays as it is written, but for line breaks between its values."""

    formulas = 0

    def __init__(self, file: IO[str], added_names: Sequence[str], in_list: bool) -> None:
        self._file, self._added, self._in_list = file, added_names, in_list
        self._begun = False

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        new = [_json(dict(zip(self._added, values, strict=True))) for values in zip(*added_columns, strict=True)]
        if rows.written is not None:
            old = [re.sub(r"[\r\n]+", " ", text) for text in rows.written]
        else:
            columns = [rows.column(index) for index in range(len(rows.names))]
            old = [_json(dict(zip(rows.names, values, strict=True))) for values in zip(*columns, strict=True)]
        for before, after in zip(old, new, strict=True):
            begun = before[:-1].rstrip()
            row = f"{begun}{', ' if begun != '{' else ''}{after[1:]}"
            self._file.write(f"{',' if self._begun else '['}\n{row}" if self._in_list else f"{row}\n")
            self._begun = True

    def end(self) -> None:
        """Close the list."""
        if self._in_list:
            self._file.write("\n]\n" if self._begun else "[]\n")


def _json(value: Any) -> str:
    return representable(json.dumps(finite(value), ensure_ascii=False, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """Return types that JSON lacks, times and decimals, as text."""
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise UserError(f"a column of the input holds {type(value).__name__}, which only parquet can; end the output in it")


# -- parquet --------------------------------------------------------------------------------------------------------


def _schema(table: Table, added_types: Mapping[str, type]) -> pa.Schema:
    """Return the schema: columns of parquet and JSON as they are, others as text, added ones."""
    schema = table.schema or pa.schema([(name, pa.string()) for name in table.names])
    for name, kind in added_types.items():
        schema = schema.append(pa.field(name, TYPES[kind]))
    return schema


class _Parquet:
    formulas = 0

    def __init__(self, file: pq.ParquetWriter) -> None:
        self._file = file

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        kinds = self._file.schema.types
        old = rows.arrays(kinds[: len(rows.names)])
        plain = [[_json(value) if isinstance(value, list) else value for value in values] for values in added_columns]
        new = [as_array(values, kind) for values, kind in zip(plain, kinds[len(old) :], strict=True)]
        if len(rows):
            self._file.write_batch(pa.RecordBatch.from_arrays([*old, *new], schema=self._file.schema))


# -- Excel ----------------------------------------------------------------------------------------------------------


class _Xlsx:
    """A sheet. Text stays text, whatever it begins with; a number that is written as Excel shows it becomes one."""

    formulas = 0

    def __init__(self, target: Path, names: Sequence[str]) -> None:
        import openpyxl

        self._target, self._rows = target, 0
        self._book = openpyxl.Workbook(write_only=True)
        self._sheet = self._book.create_sheet("Sheet1")
        self._append(names)

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        columns = [*(rows.column(index) for index in range(len(rows.names))), *added_columns]
        for row in zip(*columns, strict=True):
            self._append(row)

    def _append(self, row: Sequence[Any]) -> None:
        self._rows += 1
        if self._rows > MAX_SHEET_ROWS:
            self._refuse(f"more than {MAX_SHEET_ROWS:,} rows")
        self._sheet.append([self._cell(value) for value in row])

    def _cell(self, value: Any) -> Any:
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE, WriteOnlyCell

        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value if value is None or math.isfinite(value) else str(value)
        text = _field(value)
        if isinstance(value, str) and len(text) <= MAX_DIGITS and SHEET_NUMBER.fullmatch(text):
            return float(text) if "." in text else int(text)
        if len(text) > MAX_CELL_CHARACTERS:
            self._refuse(f"a text of more than {MAX_CELL_CHARACTERS:,} characters")
        cell = WriteOnlyCell(self._sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", text))
        cell.data_type = "s"
        return cell

    def _refuse(self, unsupported_content: str) -> None:
        raise UserError(f"{self._target}: a sheet of Excel cannot hold {unsupported_content}; end the output in .csv")

    def save(self, path: Path) -> None:
        """Write the file."""
        self._book.save(path)
