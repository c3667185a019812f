"""Rows of a file, read in chunks: csv, tsv, xlsx, JSON, parquet, Arrow, and one text per line.

Runs, `predict --input` and `recipe new` read local files with this module. No value is interpreted: ``001`` stays
``001``, and NA stays a word. An error in a file names its line and its row, counted from 1 without the header.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from models.files.plain import UnreadableFileError, plain_file
from models.port.tokenization import replace_surrogates
from toolkit.errors import UserError
from toolkit.files.compression import is_packed
from toolkit.files.csv_rows import NO_HEADER_ADVICE, Layout, find_csv_layout, lacks_header, read_csv_rows
from toolkit.files.json_rows import TEXT_COLUMN, read_json_rows
from toolkit.files.kinds import BINARY_KINDS, detect_kind
from toolkit.files.nested_columns import MISSING, get_nested_value
from toolkit.files.sheet_rows import read_sheet_rows
from toolkit.files.text_encoding import WrongEncodingError, check_encoding, open_text

#: Type of a JSON column with values of several types, stored as JSON text; None if pyarrow lacks this type.
MIXED_TYPE: pa.DataType | None = pa.json_() if hasattr(pa, "json_") else None

#: Most columns of a table, or different keys of all JSON rows: half as many as in a spreadsheet. A file of 8,000 rows
#: that each add a key takes ten seconds to read, and a file of 16,000 such rows half a minute.
MAX_COLUMNS = 2**13

#: Most rows of a chunk, and number of characters after which a chunk is full.
CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 2**22


#: Kinds that are read as record batches.
ARROW_KINDS = ("parquet", "arrow")
#: Layout of a file unless another layout is passed.
DEFAULT_LAYOUT = Layout()


class Rows:
    """Consecutive rows of a file.

    Attributes:
        first_number: number of the first row, from 1.
        names: column names.
        row_texts: JSON text of each row; None for other kinds of files.
    """

    def __init__(
        self, first_number: int, names: Sequence[str], rows: list[Sequence[Any]], row_texts: list[str] | None
    ) -> None:
        self.first_number, self.names, self.row_texts = first_number, names, row_texts
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def has_row_as_header(self) -> bool:
        """Return whether the column names of a csv file look like a row of data."""
        return self.row_texts is None and lacks_header([self.names, *self._rows])

    def column(self, index: int) -> list[Any]:
        """Return the values of a column: texts, or JSON values."""
        return [row[index] for row in self._rows]

    def arrays(self, kinds: Iterable[pa.DataType]) -> list[pa.Array]:
        """Return the columns as Arrow arrays, in their order.

        Args:
            kinds: Arrow type of each column.
        """
        return [build_array(self.column(index), kind) for index, kind in enumerate(kinds)]

    def values(self, name: str) -> list[Any]:
        """Return the values of a column, which may be nested; :data:`MISSING` in rows without it."""
        names = list(self.names)
        if name in names:
            return self.column(names.index(name))
        outer_names = [outer_name for outer_name in names if name.startswith(f"{outer_name}.")]
        rows = (
            zip(*(self.column(names.index(outer_name)) for outer_name in outer_names), strict=True)
            if outer_names
            else [()] * len(self)
        )
        return [get_nested_value(dict(zip(outer_names, row, strict=True)), name) for row in rows]


class ArrowRows(Rows):
    """Rows of a parquet or Arrow file, stored as a record batch."""

    def __init__(self, first_number: int, record_batch: pa.RecordBatch) -> None:
        super().__init__(first_number, record_batch.schema.names, [], None)
        self.batch: pa.RecordBatch = record_batch

    def __len__(self) -> int:
        return self.batch.num_rows

    def column(self, index: int) -> list[Any]:
        """Return the values of a column as Python objects."""
        return self.batch.column(index).to_pylist()

    def arrays(self, kinds: Iterable[pa.DataType]) -> list[pa.Array]:
        """Return the columns as Arrow arrays with the types that they already have; ``kinds`` is not used."""
        return self.batch.columns


def build_array(values: Sequence[Any], arrow_type: pa.DataType | None = None) -> pa.Array:
    """Return values as an Arrow array; values of :data:`MIXED_TYPE` are stored as JSON text.

    Lone surrogates are replaced, and integers beyond 64 bits are rounded.
    """
    if arrow_type is not None and arrow_type == MIXED_TYPE:
        values = [None if value is None else json.dumps(_replace_unstorable(value)) for value in values]
    try:
        return pa.array(values, arrow_type)
    except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):
        return pa.array(_replace_unstorable(list(values)), arrow_type)
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError):
        if arrow_type is None or not pa.types.is_struct(arrow_type):
            raise
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        field_arrays = [
            build_array([(value or {}).get(field_type.name) for value in values], field_type.type)
            for field_type in fields
        ]
        return pa.StructArray.from_arrays(
            field_arrays, fields=fields, mask=pa.array([value is None for value in values])
        )


def _replace_unstorable(value: Any) -> Any:
    """Return a value with surrogates replaced and huge integers as floats, so that Arrow can store it."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_replace_unstorable(item) for item in value]
    if isinstance(value, dict):
        return {_replace_unstorable(key): _replace_unstorable(item) for key, item in value.items()}
    return float(value) if isinstance(value, int) and abs(value) >= 2**63 else value


@dataclass(frozen=True)
class Table:
    """A file of rows that was read to its end once without error.

    Attributes:
        path: the file.
        kind: value of :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        names: column names; for JSON, the keys of all rows in the order of their first appearance.
        size: number of rows.
        layout: layout of a text file.
        schema: schema of a parquet or Arrow file, or of all rows of a JSON file if it was requested; otherwise None.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    size: int
    layout: Layout = field(default_factory=Layout)
    schema: pa.Schema | None = None

    def chunks(self) -> Iterator[Rows]:
        """Yield the rows in chunks.

        Raises:
            UserError: the file has changed since it was checked, and is not valid any more.
        """
        with explain_read_errors(self.path):
            yield from _read_chunks(self.path, self.kind, self.layout, self.names)


def read_table(
    path: Path,
    required_columns: Sequence[str],
    delimiter: str | None = None,
    *,
    infers_schema: bool = False,
    layout: Layout = DEFAULT_LAYOUT,
    kind: str | None = None,
) -> Table:
    """Read a file to its end to check that it is valid.

    Args:
        path: file of one of the kinds in :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        required_columns: columns that the file must have exactly once, with text or no value; ``doc.body`` is the
            column ``body`` in ``doc``, unless a column has this name itself.
        delimiter: delimiter of a csv file; None to detect it (:func:`toolkit.files.csv_rows.detect_delimiter`).
        infers_schema: whether to find the schema of a JSON file.
        layout: encoding, quote and columns of the file.
        kind: kind of the file; None to detect it from the file's name or content.

    Raises:
        UserError: the file is not valid; the message names the first wrong row.
    """
    kind = kind or detect_kind(path)
    with explain_read_errors(path):
        plain_file(path)
        if kind not in BINARY_KINDS:
            check_encoding(path, layout.encoding)
        layout = find_csv_layout(path, required_columns, delimiter, layout) if kind == "csv" else layout
        return read_whole_table(path, kind, layout, required_columns, infers_schema=infers_schema, mixed_type=None)


def read_arrow_chunks(path: Path, kind: str, layout: Layout) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Return the schema of a file's rows, and an iterator over the rows in chunks.

    Columns of csv are text; repeated column names get a number.

    Raises:
        UnreadableFileError: the content is not of this kind; it is also raised while the chunks are read.
    """
    json_table = read_whole_table(path, kind, layout) if kind == "json" else None
    chunks = _show_progress(path, _read_chunks(path, kind, layout, json_table.names if json_table else None))
    if (first_chunk := next(chunks, None)) is None or not first_chunk.names:
        raise UnreadableFileError(path, "holds no rows")
    _check_width(path, len(first_chunk.names), len(first_chunk))
    if isinstance(first_chunk, ArrowRows):
        schema = first_chunk.batch.schema
        for index, kind_of_column in enumerate(schema.types):
            if pa.types.is_dictionary(kind_of_column):
                schema = schema.set(index, schema.field(index).with_type(kind_of_column.value_type))
    else:
        schema = (
            json_table.schema
            if json_table
            else pa.schema([(name, pa.string()) for name in _make_names_unique(first_chunk.names)])
        )

    def tables() -> Iterator[pa.Table]:
        for rows in itertools.chain([first_chunk], chunks):
            arrays = rows.arrays(schema.types)
            plain_arrays = [
                array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array for array in arrays
            ]
            yield pa.Table.from_arrays(plain_arrays, schema=schema)

    return schema, tables()


def _make_names_unique(names: Sequence[str]) -> list[str]:
    """Return the column names with a number added to each repeated name, and a name for each empty one."""
    unique_names, original_names, num_repeats = dict[str, None](), set(names), Counter[str]()
    for index, name in enumerate(names):
        name = base_name = name or f"Unnamed: {index}"
        while name in unique_names or (num_repeats[base_name] and name in original_names):
            num_repeats[base_name] += 1
            name = f"{base_name}.{num_repeats[base_name]}"
        unique_names[name] = None
    return list(unique_names)


def read_whole_table(
    path: Path,
    kind: str,
    layout: Layout,
    required_columns: Sequence[str] = (),
    *,
    infers_schema: bool = True,
    mixed_type: pa.DataType | None = MIXED_TYPE,
) -> Table:
    """Read a file of a known kind and layout to its end to check that it is valid.

    Args:
        path: file.
        kind: value of :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        layout: layout of a text file.
        required_columns: columns that the file must have exactly once, with text or no value.
        infers_schema: whether to find the schema of a JSON file.
        mixed_type: type of a JSON column with values of several types; None to reject such a column.

    Raises:
        UnreadableFileError: the content is not valid.
    """
    names: dict[str, None] = {}
    nested_names: set[str] = set()
    types: dict[str, pa.DataType] = {}
    header: list[str] | None = None
    schema, size = None, 0
    chunks = _read_chunks(path, kind, layout, None)
    for rows in chunks if mixed_type is None else _show_progress(path, chunks):
        if header is None:
            header, schema = list(rows.names), rows.batch.schema if isinstance(rows, ArrowRows) else None
        names.update(dict.fromkeys(rows.names))
        size += len(rows)
        if infers_schema and rows.row_texts is not None:
            _extend_types(path, types, rows, mixed_type)
        _check_width(path, max(len(names), count_stored_columns(types.values())), size)
        nested_names |= _check_text_columns(path, rows, required_columns)
        if kind != "json":  # a later row of JSON may add a key
            _check_required(path, [*header, *nested_names], required_columns, rows)
    if header is None:
        raise UnreadableFileError(path, "holds no rows")
    column_names = tuple(names if kind == "json" else header)
    _check_required(path, [*column_names, *(nested_names - set(column_names))], required_columns)
    return Table(path, kind, column_names, size, layout, pa.schema(list(types.items())) if types else schema)


def _check_width(path: Path, num_columns: int, num_rows: int) -> None:
    """Reject a table with too many columns.

    Args:
        path: file of the table.
        num_columns: number of columns so far.
        num_rows: number of rows that were read.
    """
    if num_columns > MAX_COLUMNS:
        message = f"has more than {MAX_COLUMNS:,} columns by row {num_rows}; leave out what is not used"
        raise UnreadableFileError(path, message)


def count_stored_columns(kinds: Iterable[pa.DataType]) -> int:
    """Return the number of columns in which these types are stored; each key of a JSON column counts as a column."""
    return sum(
        count_stored_columns(kind.field(index).type for index in range(kind.num_fields)) if kind.num_fields else 1
        for kind in kinds
    )


def _check_required(
    path: Path, names: Sequence[str], required_columns: Sequence[str], rows: Rows | None = None
) -> None:
    """Check that a table has all required columns, each once.

    Args:
        path: file of the table.
        names: names of the table's columns.
        required_columns: names that must occur.
        rows: first rows, which show whether the header is missing; None if the file cannot lack a header.
    """
    for name in required_columns:
        if name not in names:
            header_advice = f"{NO_HEADER_ADVICE} --columns" if rows is not None and rows.has_row_as_header() else ""
            raise UnreadableFileError(path, f"has no column {name}; it has {', '.join(names) or 'none'}{header_advice}")
    check_unique_columns(path, names, required_columns)


def check_unique_columns(path: Path, names: Sequence[str], required_columns: Iterable[str]) -> None:
    """Check that no required column occurs more than once.

    Raises:
        UnreadableFileError: a required column occurs more than once.
    """
    for name in required_columns:
        if list(names).count(name) > 1:
            raise UnreadableFileError(path, f"has the column {name} more than once")


def _check_text_columns(path: Path, rows: Rows, required_columns: Sequence[str]) -> set[str]:
    """Check that the required columns hold text or no value; return the names of nested required columns."""
    nested_names = set()
    for name in required_columns:
        for number, value in enumerate(rows.values(name), rows.first_number):
            if value is not MISSING and name not in rows.names:
                nested_names.add(name)
            if value is not None and value is not MISSING and not isinstance(value, str):
                value_text = repr(value)
                value_text = value_text if len(value_text) <= 40 else value_text[:39] + "…"
                raise UnreadableFileError(path, f"has in row {number} {value_text} for its {name}, which is no text")
    return nested_names


def _extend_types(
    path: Path, type_by_column: dict[str, pa.DataType], rows: Rows, mixed_type: pa.DataType | None
) -> None:
    """Extend the types of the columns, in place, so that they can also hold these rows.

    Raises:
        UnreadableFileError: no type holds all values of a column, and `mixed_type` is None.
    """
    for index, name in enumerate(rows.names):
        try:
            type_by_column[name] = _merge_type(rows.column(index), type_by_column.get(name, pa.null()), mixed_type)
        except pa.ArrowException:
            row_range = f"rows {rows.first_number} to {rows.first_number + len(rows) - 1}"
            message = f"holds values of several types in its column {name} ({row_range})"
            raise UnreadableFileError(path, f"{message}, which parquet cannot; write jsonl") from None


def _merge_type(values: list[Any], earlier_type: pa.DataType, mixed_type: pa.DataType | None) -> pa.DataType:
    """Return a type that holds both these values and an earlier type; objects are merged key by key."""
    if earlier_type == mixed_type:
        return earlier_type
    try:
        schemas = [pa.schema([("", kind)]) for kind in (earlier_type, build_array(values).type)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        if mixed_type is None:
            raise
    present_values = [value for value in values if value is not None]
    type_by_key = {
        struct_field.name: struct_field.type for struct_field in map(earlier_type.field, range(earlier_type.num_fields))
    }
    are_objects = all(isinstance(value, dict) for value in present_values)
    if not are_objects or not (pa.types.is_struct(earlier_type) or pa.types.is_null(earlier_type)):
        return mixed_type
    for key in dict.fromkeys(key for value in present_values for key in value):
        type_by_key[key] = _merge_type(
            [value.get(key) for value in present_values], type_by_key.get(key, pa.null()), mixed_type
        )
    return pa.struct(list(type_by_key.items()))


# -- reading --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading a file to a UserError with one line that names the file."""
    try:
        with convert_content_errors(path):
            yield
    except WrongEncodingError as error:
        raise UserError(f"{path}:{error.line}: {error.format_message('--encoding')}") from None
    except UnreadableFileError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def convert_content_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of libraries about a file's content to an UnreadableFileError with one line.

    Errors of the system and :class:`WrongEncodingError` are not changed.
    """
    try:
        yield
    except (UnreadableFileError, WrongEncodingError):
        raise
    except (OSError, ValueError, csv.Error, RuntimeError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UnreadableFileError(path, f"cannot be read: {reason}") from None


def _show_progress(path: Path, chunks: Iterable[Rows]) -> Iterator[Rows]:
    """Yield chunks of rows, with a progress bar after two seconds."""
    with tqdm(desc=f"reading {path.name}", unit=" rows", delay=2, leave=False, disable=None) as bar:
        for rows in chunks:
            yield rows
            bar.update(len(rows))


def _read_chunks(path: Path, kind: str, layout: Layout, json_columns: Sequence[str] | None) -> Iterator[Rows]:
    """Yield the rows of a file in chunks; a file with only a header yields a chunk without rows.

    Args:
        path: file.
        kind: value of :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        layout: layout of a text file.
        json_columns: columns of a JSON file; None to use the keys of each chunk.
    """
    if kind in ARROW_KINDS:
        yield from _read_batches(path, kind)
    elif kind == "json":
        for first_number, chunk_rows in _group_rows(
            read_json_rows(path, layout.encoding, layout.columns), lambda row: len(row[0])
        ):
            keys = (
                json_columns
                if json_columns is not None
                else list(dict.fromkeys(key for _, row in chunk_rows for key in row))
            )
            rows: list[Sequence[Any]] = [[row.get(key) for key in keys] for _, row in chunk_rows]
            yield Rows(first_number, keys, rows, [text for text, _ in chunk_rows])
    elif kind == "text":
        line_groups = _group_rows(_read_lines(path, layout.encoding), _count_characters)
        yield from (Rows(first_number, (TEXT_COLUMN,), chunk_rows, None) for first_number, chunk_rows in line_groups)
    else:
        records = read_csv_rows(path, layout) if kind == "csv" else read_sheet_rows(path, layout.columns)
        header = next(records)
        is_empty = True
        for first_number, chunk_rows in _group_rows(records, _count_characters):
            is_empty = False
            yield Rows(first_number, header, chunk_rows, None)
        if is_empty:
            yield Rows(1, header, [], None)


def _count_characters(cells: Sequence[str]) -> int:
    """Return the number of characters of all fields of a row."""
    return sum(map(len, cells))


def _group_rows(rows: Iterable[Any], size_of: Callable[[Any], int]) -> Iterator[tuple[int, list[Any]]]:
    """Group rows into lists of limited size, and yield each list after the number of its first row."""
    first_number, group, num_characters = 1, [], 0
    for row in rows:
        group.append(row)
        num_characters += size_of(row)
        if len(group) >= CHUNK_ROWS or num_characters >= CHUNK_CHARACTERS:
            yield first_number, group
            first_number, group, num_characters = first_number + len(group), [], 0
    if group:
        yield first_number, group


def _read_batches(path: Path, kind: str) -> Iterator[ArrowRows]:
    """Yield the rows of a Parquet or Arrow file in chunks; a chunk without rows if there are none."""
    if is_packed(path):
        raise UnreadableFileError(path, "is packed; unpack it")
    first_number = 1
    with _open_batches(path, kind) as (schema, batches):
        for batch in batches:
            batch.validate(full=True)  # the readers accept any bytes as text
            for offset in range(0, batch.num_rows, CHUNK_ROWS):
                yield ArrowRows(first_number + offset, batch.slice(offset, CHUNK_ROWS))
            first_number += batch.num_rows
        if first_number == 1:
            yield ArrowRows(1, pa.RecordBatch.from_pylist([], schema=schema))


@contextlib.contextmanager
def _open_batches(path: Path, kind: str) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
    """Open a file in the ``with`` block, and yield its schema and its record batches.

    Args:
        path: the file.
        kind: ``parquet``; otherwise the file is an Arrow stream or an Arrow file.
    """
    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            yield file.schema_arrow, file.iter_batches(CHUNK_ROWS)
        return
    with pa.memory_map(str(path)) as mapped_file:
        try:
            reader = pa.ipc.open_stream(mapped_file)
        except pa.ArrowInvalid:
            mapped_file.seek(0)
            reader = pa.ipc.open_file(mapped_file)
        batch_indices = range(getattr(reader, "num_record_batches", 0))
        yield reader.schema, map(reader.get_batch, batch_indices) if batch_indices else reader


def _read_lines(path: Path, encoding: str) -> Iterator[tuple[str]]:
    """Yield each line of a text file as a row with a single column."""
    with open_text(path, encoding) as file:
        for line in file:
            yield (line.removesuffix("\n"),)
