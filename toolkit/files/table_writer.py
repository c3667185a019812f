"""Write the rows of a file to another file with additional columns; the existing values stay unchanged."""

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

from models.port.tokenization import replace_surrogates
from toolkit.errors import UserError
from toolkit.files.compression import content_ending
from toolkit.files.csv_rows import Layout, default_delimiter
from toolkit.files.kinds import detect_kind
from toolkit.files.strict_json import replace_nonfinite
from toolkit.files.tables import Rows, Table, build_array
from toolkit.machine.disk import explain_write_errors, find_write_obstacle
from toolkit.machine.scratch import scratch_folder

#: Endings of files that can be written.
WRITABLE_ENDINGS = (".csv", ".tsv", ".xlsx", ".jsonl", ".json", ".parquet")
#: Python type of a column -> parquet type; lists are written as JSON.
PARQUET_TYPES = {str: pa.string(), float: pa.float64(), int: pa.int64(), list: pa.string()}


#: First characters of a cell that a spreadsheet would evaluate as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


#: A number with an optional sign, which a spreadsheet shows unchanged.
SIGNED_NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")

#: Most rows of an Excel sheet, and most characters of a cell.
MAX_SHEET_ROWS, MAX_CELL_CHARACTERS = 2**20, 2**15 - 1
#: A number as Excel writes it, and its most characters, because Excel keeps 15 digits.
SHEET_NUMBER, MAX_DIGITS = re.compile(r"-?(0|[1-9]\d*)(\.\d*[1-9])?"), 15


class TableWriter(Protocol):
    """Writer of a table, which gets the rows in chunks.

    Attributes:
        formulas: number of written csv cells with text that begins like a formula.
    """

    formulas: int

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        """Write a chunk of rows.

        Args:
            rows: rows of the input.
            added_columns: values of each added column, with one value for each row.
        """


def check_target(target: Path, source: Path, *, overwrite: bool) -> None:
    """Check that an output file can be written, before the work for it is done.

    Args:
        target: output file.
        source: input file.
        overwrite: whether an existing output file may be replaced.

    Raises:
        UserError: the ending is unsupported, the file is the input or exists and may not be overwritten, or its
            folder is missing or not writable.
    """
    if detect_kind(target) == "text":
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
    if (obstacle := find_write_obstacle(target.parent)) is not None:
        raise UserError(f"{target}: its folder {target.parent} {obstacle}")


@contextlib.contextmanager
def open_table_writer(
    target: Path,
    table: Table,
    added_types: Mapping[str, type],
    *,
    overwrite: bool = False,
    escapes_formulas: bool = False,
) -> Iterator[TableWriter]:
    """Yield a writer of an output file, which appears only if the ``with`` block succeeds.

    Args:
        target: output file that passed :func:`check_target`.
        table: table of the input file.
        added_types: name -> Python type of each added column.
        overwrite: whether an existing output file may be replaced.
        escapes_formulas: whether csv gets an apostrophe before a text that begins like a formula, so that spreadsheets
            show it as text.

    Raises:
        UserError: the table has values that a file of this kind cannot hold, or the target was created meanwhile.
        toolkit.machine.disk.WriteError: the system refused the write.
    """
    kind = detect_kind(target)
    with (
        explain_write_errors(target, resumes=False),
        scratch_folder(".toolkit-", parent_folder=target.parent) as scratch,
    ):
        unfinished_path = scratch / "rows"
        if kind == "parquet":
            with pq.ParquetWriter(unfinished_path, _output_schema(table, added_types)) as parquet:
                yield _ParquetWriter(parquet)
        elif kind == "xlsx":
            sheet = _XlsxWriter(target, [*table.names, *added_types])
            yield sheet
            sheet.save(unfinished_path)
        else:
            layout = _output_layout(target, table)
            encoding = "utf-8-sig" if kind == "csv" and layout.byte_order_mark else "utf-8"
            with open(unfinished_path, "w", encoding=encoding, newline="") as file:
                if kind == "csv":
                    yield _CsvWriter(file, layout, [*table.names, *added_types], escapes_formulas=escapes_formulas)
                else:
                    json_writer = _JsonWriter(file, list(added_types), in_list=target.suffix.lower() == ".json")
                    yield json_writer
                    json_writer.end()
        _flush_file(unfinished_path)
        if os.path.lexists(target) and not overwrite:
            raise UserError(f"{target}: was created meanwhile; choose another output, or add --overwrite")
        os.replace(unfinished_path, target)


def _flush_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


# -- csv ------------------------------------------------------------------------------------------------------------


def _output_layout(target: Path, table: Table) -> Layout:
    """Return the layout of the output: the input's layout, with the default delimiter if the endings differ.

    Args:
        target: file to write.
        table: input table.
    """
    input_layout, has_same_ending = table.layout, content_ending(table.path) == content_ending(target)
    return Layout(
        input_layout.delimiter if has_same_ending else default_delimiter(target),
        input_layout.line_end,
        input_layout.byte_order_mark,
    )


class _CsvWriter:
    def __init__(self, file: IO[str], layout: Layout, names: Sequence[str], *, escapes_formulas: bool) -> None:
        self.formulas, self._escapes_formulas = 0, escapes_formulas
        self._rows = csv.writer(file, delimiter=layout.delimiter, lineterminator=layout.line_end)
        self._rows.writerow(map(self._field, names))

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        """Write rows, with the values of the added columns at their end.

        Args:
            rows: rows of the input table.
            added_columns: values of each added column, one for each row.
        """
        columns = [*(rows.column(index) for index in range(len(rows.names))), *added_columns]
        for row in zip(*columns, strict=True):
            self._rows.writerow(map(self._field, row))

    def _field(self, value: Any) -> str:
        """Return a value as text; a formula is counted, and escaped if the user wants this."""
        field = _format_field(value)
        if not field.startswith(FORMULA_STARTS) or not isinstance(value, str) or SIGNED_NUMBER.fullmatch(field):
            return field
        self.formulas += 1
        return f"'{field}" if self._escapes_formulas else field


def _format_field(value: Any) -> str:
    """Format a csv field: empty for None, JSON for values that are not text or numbers."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if value is None:
        return ""
    if isinstance(value, (bool, list, dict, tuple, bytes)):
        return replace_surrogates(_format_json(value))
    return str(value)


# -- JSON -----------------------------------------------------------------------------------------------------------


class _JsonWriter:
    """Writer of JSON lines or of one list; a JSON row keeps its text except for line breaks between values."""

    formulas = 0

    def __init__(self, file: IO[str], added_names: Sequence[str], *, in_list: bool) -> None:
        self._file, self._added_names, self._in_list = file, added_names, in_list
        self._has_rows = False

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        """Write rows as JSON objects, with the values of the added columns at their end.

        Args:
            rows: rows of the input table.
            added_columns: values of each added column, one for each row.
        """
        added_values = [
            _format_json(dict(zip(self._added_names, values, strict=True)))
            for values in zip(*added_columns, strict=True)
        ]
        if rows.row_texts is not None:
            existing_values = [re.sub(r"[\r\n]+", " ", text) for text in rows.row_texts]
        else:
            columns = [rows.column(index) for index in range(len(rows.names))]
            existing_values = [
                _format_json(dict(zip(rows.names, values, strict=True))) for values in zip(*columns, strict=True)
            ]
        for row_text, added_text in zip(existing_values, added_values, strict=True):
            open_object = row_text[:-1].rstrip()
            row = f"{open_object}{', ' if open_object != '{' else ''}{added_text[1:]}"
            self._file.write(f"{',' if self._has_rows else '['}\n{row}" if self._in_list else f"{row}\n")
            self._has_rows = True

    def end(self) -> None:
        """Write the end of the list."""
        if self._in_list:
            self._file.write("\n]\n" if self._has_rows else "[]\n")


def _format_json(value: Any) -> str:
    """Return a value as valid JSON text, with null for numbers that are not finite."""
    return replace_surrogates(
        json.dumps(replace_nonfinite(value), ensure_ascii=False, allow_nan=False, default=_convert_for_json)
    )


def _convert_for_json(value: Any) -> Any:
    """Return a time or a decimal number as text, because JSON lacks these types."""
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise UserError(f"a column of the input holds {type(value).__name__}, which only parquet can; end the output in it")


# -- parquet --------------------------------------------------------------------------------------------------------


def _output_schema(table: Table, added_types: Mapping[str, type]) -> pa.Schema:
    """Return the schema of the output: the input's column types, or text, followed by the added columns."""
    schema = table.schema or pa.schema([(name, pa.string()) for name in table.names])
    for name, value_type in added_types.items():
        schema = schema.append(pa.field(name, PARQUET_TYPES[value_type]))
    return schema


class _ParquetWriter:
    formulas = 0

    def __init__(self, parquet_writer: pq.ParquetWriter) -> None:
        self._file = parquet_writer

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        """Write rows as a record batch, with the added columns at its end.

        Args:
            rows: rows of the input table.
            added_columns: values of each added column, one for each row.
        """
        column_types = self._file.schema.types
        existing_values = rows.arrays(column_types[: len(rows.names)])
        storable_columns = [
            [_format_json(value) if isinstance(value, list) else value for value in values] for values in added_columns
        ]
        added_values = [
            build_array(values, kind)
            for values, kind in zip(storable_columns, column_types[len(existing_values) :], strict=True)
        ]
        if len(rows):
            self._file.write_batch(
                pa.RecordBatch.from_arrays([*existing_values, *added_values], schema=self._file.schema)
            )


# -- Excel ----------------------------------------------------------------------------------------------------------


class _XlsxWriter:
    """Writer of an Excel sheet, where text in Excel's number format becomes a number and other text stays text."""

    formulas = 0

    def __init__(self, target: Path, names: Sequence[str]) -> None:
        import openpyxl

        self._target, self._rows = target, 0
        self._book = openpyxl.Workbook(write_only=True)
        self._sheet = self._book.create_sheet("Sheet1")
        self._append(names)

    def write(self, rows: Rows, added_columns: Sequence[Sequence[Any]]) -> None:
        """Write rows, with the values of the added columns at their end.

        Args:
            rows: rows of the input table.
            added_columns: values of each added column, one for each row.
        """
        columns = [*(rows.column(index) for index in range(len(rows.names))), *added_columns]
        for row in zip(*columns, strict=True):
            self._append(row)

    def _append(self, cells: Sequence[Any]) -> None:
        """Append a row to the sheet, unless the sheet is full."""
        self._rows += 1
        if self._rows > MAX_SHEET_ROWS:
            self._refuse(f"more than {MAX_SHEET_ROWS:,} rows")
        self._sheet.append([self._cell(value) for value in cells])

    def _cell(self, value: Any) -> Any:
        """Return a value as Excel stores it: a number, or a cell whose text is never a formula."""
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE, WriteOnlyCell

        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value if value is None or math.isfinite(value) else str(value)
        text = _format_field(value)
        if isinstance(value, str) and len(text) <= MAX_DIGITS and SHEET_NUMBER.fullmatch(text):
            return float(text) if "." in text else int(text)
        if len(text) > MAX_CELL_CHARACTERS:
            self._refuse(f"a text of more than {MAX_CELL_CHARACTERS:,} characters")
        cell = WriteOnlyCell(self._sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", text))
        cell.data_type = "s"
        return cell

    def _refuse(self, unsupported_content: str) -> None:
        """Raise a UserError for content that a sheet of Excel cannot hold."""
        raise UserError(f"{self._target}: a sheet of Excel cannot hold {unsupported_content}; end the output in .csv")

    def save(self, path: Path) -> None:
        """Write the workbook to a file."""
        self._book.save(path)
