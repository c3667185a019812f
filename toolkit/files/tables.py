"""Rows of a file, read in chunks and as they are written: csv, tsv, xlsx, JSON, parquet, Arrow, and one text per line.

Runs, `predict --input` and `recipe new` read local files by this module. No value is interpreted: ``001`` stays
``001``, the word NA a word. An error in a file names its line, and its row, counted from 1 without the header.
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

from models.files.plain import UnreadableFile, plain_file
from models.port.tokenization import representable
from toolkit.errors import UserError
from toolkit.files.csv_rows import NO_HEADER, Layout, csv_layout, csv_rows, lacks_header
from toolkit.files.json_rows import TEXT, json_rows
from toolkit.files.kinds import BINARY, kind_of
from toolkit.files.nested_columns import MISSING, reached
from toolkit.files.packed import is_packed
from toolkit.files.sheet_rows import sheet_rows
from toolkit.files.text_encoding import WrongEncoding, check_encoding, opened_text

#: Type of a column of JSON that holds values of several types: the text of each. Earlier versions have none.
SEVERAL: pa.DataType | None = pa.json_() if hasattr(pa, "json_") else None

#: Most columns of a table, or different keys of all JSON rows: half of what spreadsheets have. 8,000 rows with a new
#: key each take ten seconds to read, twice as many half a minute.
MOST_COLUMNS = 2**13

#: Rows of a chunk, and characters after which it is full.
CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 2**22


#: Kinds that are read as record batches.
ARROW_KINDS = ("parquet", "arrow")
#: The layout of a file that says nothing else.
PLAIN = Layout()


class Rows:
    """Consecutive rows of a file.

    Attributes:
        first: the number of the first.
        names: of the columns.
        written: the JSON text of each row; None of another kind of file.
    """

    def __init__(self, first: int, names: Sequence[str], rows: list[Sequence[Any]], written: list[str] | None) -> None:
        self.first, self.names, self.written = first, names, written
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def header_is_a_row(self) -> bool:
        """Whether the names of a csv file's columns look like its first row."""
        return self.written is None and lacks_header([self.names, *self._rows])

    def column(self, index: int) -> list[Any]:
        """Return a column's values: texts, or JSON values."""
        return [row[index] for row in self._rows]

    def arrays(self, kinds: Iterable[pa.DataType]) -> list[pa.Array]:
        """Return the columns as Arrow holds them, of these types."""
        return [as_array(self.column(index), kind) for index, kind in enumerate(kinds)]

    def values(self, name: str) -> list[Any]:
        """Return a column's values, nested or not (:mod:`.nested_columns`); :data:`MISSING` where a row has none."""
        names = list(self.names)
        if name in names:
            return self.column(names.index(name))
        outer = [other for other in names if name.startswith(f"{other}.")]
        rows = zip(*(self.column(names.index(other)) for other in outer), strict=True) if outer else [()] * len(self)
        return [reached(dict(zip(outer, row, strict=True)), name) for row in rows]


class ArrowRows(Rows):
    """Rows of a parquet or Arrow file, as a record batch."""

    def __init__(self, first: int, batch: pa.RecordBatch) -> None:
        super().__init__(first, batch.schema.names, [], None)
        self.batch: pa.RecordBatch = batch

    def __len__(self) -> int:
        return self.batch.num_rows

    def column(self, index: int) -> list[Any]:
        return self.batch.column(index).to_pylist()

    def arrays(self, kinds: Iterable[pa.DataType]) -> list[pa.Array]:
        return self.batch.columns


def as_array(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return values as Arrow holds them; of :data:`SEVERAL` types, the JSON of each. Lone surrogates are replaced, and
    numbers beyond 64 bits rounded."""
    if kind is not None and kind == SEVERAL:
        values = [None if value is None else json.dumps(_held(value)) for value in values]
    try:
        return pa.array(values, kind)
    except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):
        return pa.array(_held(list(values)), kind)
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError):
        if kind is None or not pa.types.is_struct(kind):
            raise
        fields = [kind.field(index) for index in range(kind.num_fields)]
        inner = [as_array([(value or {}).get(one.name) for value in values], one.type) for one in fields]
        return pa.StructArray.from_arrays(inner, fields=fields, mask=pa.array([value is None for value in values]))


def _held(value: Any) -> Any:
    if isinstance(value, str):
        return representable(value)
    if isinstance(value, list):
        return [_held(item) for item in value]
    if isinstance(value, dict):
        return {_held(key): _held(item) for key, item in value.items()}
    return float(value) if isinstance(value, int) and abs(value) >= 2**63 else value


@dataclass(frozen=True)
class Table:
    """A file of rows that was read to its end once without error.

    Attributes:
        names: of the columns; of JSON, each key of any row, in the order of their first appearance.
        size: rows.
        layout: of a file of text.
        schema: of a parquet or Arrow file; of JSON, if it was asked for, that of all rows.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    size: int
    layout: Layout = field(default_factory=Layout)
    schema: pa.Schema | None = None

    def chunks(self) -> Iterator[Rows]:
        """The rows, in order. Raises UserError if the file has changed and is no longer sound."""
        with reading(self.path):
            yield from _chunks(self.path, self.kind, self.layout, self.names)


def read_table(
    path: Path,
    needed: Sequence[str],
    delimiter: str | None = None,
    typed: bool = False,
    layout: Layout = PLAIN,
    kind: str | None = None,
) -> Table:
    """Read a file once to check that all of it is valid.

    Args:
        path: of one of the :data:`toolkit.files.kinds.KINDS`.
        needed: columns that it must have exactly once each, with text or nothing; ``doc.body`` is the column ``body``
            in ``doc``, unless one has that name itself.
        delimiter: of csv; None for the one that fits (:func:`toolkit.files.csv_rows.likely_delimiter`).
        typed: find out the schema of JSON.
        layout: encoding, quote and columns.
        kind: None for what the file is by its name or content.

    Raises:
        UserError: it is no such file; with the row where it is not.
    """
    kind = kind or kind_of(path)
    with reading(path):
        plain_file(path)
        if kind not in BINARY:
            check_encoding(path, layout.encoding)
        layout = csv_layout(path, needed, delimiter, layout) if kind == "csv" else layout
        return read_whole(path, kind, layout, needed, typed, None)


def arrow_rows(path: Path, kind: str, layout: Layout) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Return the schema of a file's rows, and these in chunks. Columns of csv are text; each has a name of its own.
    Raises UnreadableFile if it is not of that kind; also while the chunks are read."""
    whole = read_whole(path, kind, layout) if kind == "json" else None
    chunks = _shown(path, _chunks(path, kind, layout, whole.names if whole else None))
    if (first := next(chunks, None)) is None or not first.names:
        raise UnreadableFile(path, "holds no rows")
    _check_width(path, len(first.names), len(first))
    if isinstance(first, ArrowRows):
        schema = first.batch.schema
        for index, kind_of_column in enumerate(schema.types):
            if pa.types.is_dictionary(kind_of_column):
                schema = schema.set(index, schema.field(index).with_type(kind_of_column.value_type))
    else:
        schema = whole.schema if whole else pa.schema([(name, pa.string()) for name in _different(first.names)])

    def tables() -> Iterator[pa.Table]:
        for rows in itertools.chain([first], chunks):
            arrays = rows.arrays(schema.types)
            plain = [one.dictionary_decode() if isinstance(one, pa.DictionaryArray) else one for one in arrays]
            yield pa.Table.from_arrays(plain, schema=schema)

    return schema, tables()


def _different(names: Sequence[str]) -> list[str]:
    """Return names of which no two are equal, and none is empty."""
    found, given, times = dict[str, None](), set(names), Counter[str]()
    for index, name in enumerate(names):
        name = plain = name or f"Unnamed: {index}"
        while name in found or (times[plain] and name in given):
            times[plain] += 1
            name = f"{plain}.{times[plain]}"
        found[name] = None
    return list(found)


def read_whole(
    path: Path,
    kind: str,
    layout: Layout,
    needed: Sequence[str] = (),
    typed: bool = True,
    several: pa.DataType | None = SEVERAL,
) -> Table:
    """Read a file of a kind to its end, as :func:`read_table`. A column of JSON with values of several types gets the
    type ``several``, or is refused if that is None. Raises as :func:`arrow_rows`."""
    names: dict[str, None] = {}
    within: set[str] = set()
    types: dict[str, pa.DataType] = {}
    header: list[str] | None = None
    schema, size = None, 0
    chunks = _chunks(path, kind, layout, None)
    for rows in chunks if several is None else _shown(path, chunks):
        if header is None:
            header, schema = list(rows.names), rows.batch.schema if isinstance(rows, ArrowRows) else None
        names.update(dict.fromkeys(rows.names))
        size += len(rows)
        if typed and rows.written is not None:
            _merge(path, types, rows, several)
        _check_width(path, max(len(names), stored_columns(types.values())), size)
        within |= _check_texts(path, rows, needed)
        if kind != "json":  # in JSON a key may come in a later row
            _check_needed(path, [*header, *within], needed, rows)
    if header is None:
        raise UnreadableFile(path, "holds no rows")
    found = tuple(names if kind == "json" else header)
    _check_needed(path, [*found, *(within - set(found))], needed)
    return Table(path, kind, found, size, layout, pa.schema(list(types.items())) if types else schema)


def _check_width(path: Path, columns: int, size: int) -> None:
    if columns > MOST_COLUMNS:
        wrong = f"has more than {MOST_COLUMNS:,} columns by row {size}; leave out what is not used"
        raise UnreadableFile(path, wrong)


def stored_columns(kinds: Iterable[pa.DataType]) -> int:
    """Return the number of columns that hold these types: each key inside of a JSON column takes one."""
    return sum(
        stored_columns(kind.field(index).type for index in range(kind.num_fields)) if kind.num_fields else 1
        for kind in kinds
    )


def _check_needed(path: Path, names: Sequence[str], needed: Sequence[str], rows: Rows | None = None) -> None:
    for name in needed:
        if name not in names:
            doubt = f"{NO_HEADER} --columns" if rows is not None and rows.header_is_a_row() else ""
            raise UnreadableFile(path, f"has no column {name}; it has {', '.join(names) or 'none'}{doubt}")
    check_once(path, names, needed)


def check_once(path: Path, names: Sequence[str], needed: Iterable[str]) -> None:
    """Check that a file has no needed column twice. Raises UnreadableFile if it has."""
    for name in needed:
        if list(names).count(name) > 1:
            raise UnreadableFile(path, f"has the column {name} more than once")


def _check_texts(path: Path, rows: Rows, needed: Sequence[str]) -> set[str]:
    """Check that the needed columns hold text or nothing; return those nested in other columns."""
    within = set()
    for name in needed:
        for number, value in enumerate(rows.values(name), rows.first):
            if value is not MISSING and name not in rows.names:
                within.add(name)
            if value is not None and value is not MISSING and not isinstance(value, str):
                shown = repr(value)
                shown = shown if len(shown) <= 40 else shown[:39] + "…"
                raise UnreadableFile(path, f"has in row {number} {shown} for its {name}, which is no text")
    return within


def _merge(path: Path, types: dict[str, pa.DataType], rows: Rows, several: pa.DataType | None) -> None:
    """Extend the types of columns to hold these rows. Raises UnreadableFile if there is none, and no ``several`` that
    holds any."""
    for index, name in enumerate(rows.names):
        try:
            types[name] = _type_of(rows.column(index), types.get(name, pa.null()), several)
        except pa.ArrowException:
            within = f"rows {rows.first} to {rows.first + len(rows) - 1}"
            wrong = f"holds values of several types in its column {name} ({within})"
            raise UnreadableFile(path, f"{wrong}, which parquet cannot; write jsonl") from None


def _type_of(values: list[Any], before: pa.DataType, several: pa.DataType | None) -> pa.DataType:
    """Return the type that holds values and those of another type; of objects, key by key."""
    if before == several:
        return before
    try:
        schemas = [pa.schema([("", kind)]) for kind in (before, as_array(values).type)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        if several is None:
            raise
    found = [value for value in values if value is not None]
    known = {one.name: one.type for one in map(before.field, range(before.num_fields))}
    objects = all(isinstance(value, dict) for value in found)
    if not objects or not (pa.types.is_struct(before) or pa.types.is_null(before)):
        return several
    for key in dict.fromkeys(key for value in found for key in value):
        known[key] = _type_of([value.get(key) for value in found], known.get(key, pa.null()), several)
    return pa.struct(list(known.items()))


# -- reading --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Report errors of reading a file in one line that names it, as a UserError."""
    try:
        with sound(path):
            yield
    except WrongEncoding as problem:
        raise UserError(f"{path}:{problem.line}: {problem.told('--encoding')}") from None
    except UnreadableFile as problem:
        raise UserError(str(problem)) from None
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror}") from None


@contextlib.contextmanager
def sound(path: Path) -> Iterator[None]:
    """Report in one line what the libraries raise for a file's content, as an UnreadableFile. Errors of the system and
    :class:`WrongEncoding` stay as they are."""
    try:
        yield
    except (UnreadableFile, WrongEncoding):
        raise
    except (OSError, ValueError, csv.Error, RuntimeError, OverflowError, pa.ArrowException) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise
        reason = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise UnreadableFile(path, f"cannot be read: {reason}") from None


def _shown(path: Path, chunks: Iterable[Rows]) -> Iterator[Rows]:
    """Yield chunks of rows, with a progress bar after two seconds."""
    with tqdm(desc=f"reading {path.name}", unit=" rows", delay=2, leave=False) as bar:
        for rows in chunks:
            yield rows
            bar.update(len(rows))


def _chunks(path: Path, kind: str, layout: Layout, names: Sequence[str] | None) -> Iterator[Rows]:
    """The rows of a file; of one with a header alone, a chunk without rows. ``names`` are the columns of JSON; None for
    those of each chunk."""
    if kind in ARROW_KINDS:
        yield from _batches(path, kind)
    elif kind == "json":
        for first, found in _gathered(json_rows(path, layout.encoding, layout.columns), lambda row: len(row[0])):
            keys = names if names is not None else list(dict.fromkeys(key for _, row in found for key in row))
            rows: list[Sequence[Any]] = [[row.get(key) for key in keys] for _, row in found]
            yield Rows(first, keys, rows, [text for text, _ in found])
    elif kind == "text":
        lines = _gathered(_lines(path, layout.encoding), _characters)
        yield from (Rows(first, (TEXT,), found, None) for first, found in lines)
    else:
        records = csv_rows(path, layout) if kind == "csv" else sheet_rows(path, layout.columns)
        header = next(records)
        empty = True
        for first, found in _gathered(records, _characters):
            empty = False
            yield Rows(first, header, found, None)
        if empty:
            yield Rows(1, header, [], None)


def _characters(row: Sequence[str]) -> int:
    return sum(map(len, row))


def _gathered(rows: Iterable[Any], size_of: Callable[[Any], int]) -> Iterator[tuple[int, list[Any]]]:
    """Rows in chunks, each with the number of its first row."""
    first, found, characters = 1, [], 0
    for row in rows:
        found.append(row)
        characters += size_of(row)
        if len(found) >= CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield first, found
            first, found, characters = first + len(found), [], 0
    if found:
        yield first, found


def _batches(path: Path, kind: str) -> Iterator[ArrowRows]:
    if is_packed(path):
        raise UnreadableFile(path, "is packed; unpack it")
    first = 1
    with _opened_batches(path, kind) as (schema, batches):
        for batch in batches:
            batch.validate(full=True)  # the readers take any bytes for text
            for place in range(0, batch.num_rows, CHUNK_ROWS):
                yield ArrowRows(first + place, batch.slice(place, CHUNK_ROWS))
            first += batch.num_rows
        if first == 1:
            yield ArrowRows(1, pa.RecordBatch.from_pylist([], schema=schema))


@contextlib.contextmanager
def _opened_batches(path: Path, kind: str) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            yield file.schema_arrow, file.iter_batches(CHUNK_ROWS)
        return
    with pa.memory_map(str(path)) as stored:
        try:
            reader = pa.ipc.open_stream(stored)
        except pa.ArrowInvalid:
            stored.seek(0)
            reader = pa.ipc.open_file(stored)
        indices = range(getattr(reader, "num_record_batches", 0))
        yield reader.schema, map(reader.get_batch, indices) if indices else reader


def _lines(path: Path, encoding: str) -> Iterator[tuple[str]]:
    """Each line of a text."""
    with opened_text(path, encoding) as file:
        for line in file:
            yield (line.removesuffix("\n"),)
