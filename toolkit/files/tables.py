"""Rows of a file, read in chunks and as they are written: csv, tsv, JSON, parquet, and one text per line.

No value is interpreted: ``001`` stays ``001``, the word NA a word. An error in a file names its row, counted from 1
without the header.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from models.files.plain import UnreadableFile, plain_file
from toolkit.errors import UserError
from toolkit.files.csv_rows import Layout, csv_layout, csv_rows
from toolkit.files.json_rows import json_rows
from toolkit.files.nested_columns import MISSING, reached
from toolkit.files.text_encoding import WrongEncoding, check_encoding, opened_text

#: A file's ending -> what it holds. JSON is read as a list of rows or row after row, whatever its ending.
KINDS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet", ".txt": "text"}
#: Those kinds that are JSON: objects one after the other, and one list of them.
JSON = ("jsonl", "json")
#: The column of a file of texts.
TEXT = "text"

#: Most columns of a table, or different keys of all JSON rows: half of what spreadsheets have. 8,000 rows with a new
#: key each take ten seconds to read, twice as many half a minute.
MOST_COLUMNS = 2**13

#: Rows of a chunk, and characters after which it is full.
CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 2**22


def kind_of(path: Path) -> str:
    """What a file holds, by its ending: a value of :data:`KINDS`.

    Raises:
        UserError: no ending that is known.
    """
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"{path}: its name should end in one of {', '.join(KINDS)}, which says what it holds")
    return kind


class Rows:
    """Consecutive rows of a file.

    Attributes:
        first: the number of the first.
        names: of the columns.
        written: the JSON text of each row; None of another kind of file.
    """

    batch: pa.RecordBatch | None = None

    def __init__(self, first: int, names: Sequence[str], rows: list[Sequence[Any]], written: list[str] | None) -> None:
        self.first, self.names, self.written = first, names, written
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, index: int) -> list[Any]:
        """Return a column's values: texts, or JSON values."""
        return [row[index] for row in self._rows]

    def values(self, name: str) -> list[Any]:
        """Return a column's values, nested or not (:mod:`.nested_columns`); :data:`MISSING` where a row has none."""
        names = list(self.names)
        if name in names:
            return self.column(names.index(name))
        outer = [other for other in names if name.startswith(f"{other}.")]
        rows = zip(*(self.column(names.index(other)) for other in outer), strict=True) if outer else [()] * len(self)
        return [reached(dict(zip(outer, row, strict=True)), name) for row in rows]


class ArrowRows(Rows):
    """Rows of a parquet file, as its record batch."""

    def __init__(self, first: int, batch: pa.RecordBatch) -> None:
        super().__init__(first, batch.schema.names, [], None)
        self.batch: pa.RecordBatch = batch

    def __len__(self) -> int:
        return self.batch.num_rows

    def column(self, index: int) -> list[Any]:
        return self.batch.column(index).to_pylist()


@dataclass(frozen=True)
class Table:
    """A file of rows that was read to its end once without error.

    Attributes:
        names: of the columns; of JSON, each key of any row, in the order of their first appearance.
        size: rows.
        layout: of a file of text.
        schema: of a parquet file; of JSON, if it was asked for, that of all rows.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    size: int
    layout: Layout = field(default_factory=Layout)
    schema: pa.Schema | None = None

    def chunks(self) -> Iterator[Rows]:
        """The rows, in order.

        Raises:
            UserError: the file has changed and is no longer sound.
        """
        with reading(self.path):
            yield from _chunks(self.path, self.kind, self.layout, self.names)


def read_table(
    path: Path,
    needed: Sequence[str],
    delimiter: str | None = None,
    typed: bool = False,
    encoding: str = "utf-8",
) -> Table:
    """Read a file once to check that all of it is valid.

    Args:
        path: of one of the :data:`KINDS`.
        needed: columns that it must have exactly once each, with text or nothing; ``doc.body`` is the column ``body``
            in ``doc``, unless one has that name itself.
        delimiter: of csv; None for a tab in a ``.tsv`` file, and else one of :data:`toolkit.files.csv_rows.DELIMITERS`.
        typed: find out the schema of JSON.
        encoding: of all kinds but parquet.

    Raises:
        UserError: it is no such file; with the row where it is not.
    """
    kind = kind_of(path)
    with reading(path):
        plain_file(path)
        if kind != "parquet":
            check_encoding(path, encoding)
        plain = Layout(encoding=encoding)
        layout = csv_layout(path, needed, delimiter, encoding) if kind == "csv" else plain
        names: dict[str, None] = {}
        within: set[str] = set()
        schema = pq.read_schema(path) if kind == "parquet" else None
        header = [schema.names] if schema is not None else []
        size = 0
        for rows in _chunks(path, kind, layout, None):
            if not size:
                header = [list(rows.names)]
            names.update(dict.fromkeys(rows.names))
            if len(names) > MOST_COLUMNS:
                place = f"by row {rows.first + len(rows) - 1}"
                raise UnreadableFile(
                    path, f"has more than {MOST_COLUMNS:,} columns {place}; leave out what is not used"
                )
            size += len(rows)
            within |= _check_texts(path, rows, needed)
            if kind not in JSON:  # in JSON a key may come in a later row
                _check_needed(path, [*header[0], *within], needed)
            if typed and rows.written is not None:
                schema = _merged(path, schema, rows)
        if not header:
            raise UnreadableFile(path, "holds no rows")
        found = tuple(names) if kind in JSON else tuple(header[0])
        _check_needed(path, [*found, *(within - set(found))], needed)
    return Table(path, kind, found, size, layout, schema)


def _check_needed(path: Path, names: Sequence[str], needed: Sequence[str]) -> None:
    for name in needed:
        if name not in names:
            raise UnreadableFile(path, f"has no column {name}; it has {', '.join(names) or 'none'}")
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


def _merged(path: Path, schema: pa.Schema | None, rows: Rows) -> pa.Schema:
    """Extend a schema to hold these rows.

    Raises:
        UnreadableFile: there is none.
    """
    arrays: dict[str, pa.Array] = {}
    for index, name in enumerate(rows.names):
        try:
            arrays[name] = pa.array(rows.column(index))
            found = pa.schema([(name, arrays[name].type)])
            pa.unify_schemas([found, *_field(schema, name)], promote_options="permissive")
        except pa.ArrowException:
            within = f"rows {rows.first} to {rows.first + len(rows) - 1}"
            problem = (
                f"holds values of several types in its column {name} ({within}), which parquet cannot; write jsonl"
            )
            raise UnreadableFile(path, problem) from None
    found = pa.schema([(name, array.type) for name, array in arrays.items()])
    return found if schema is None else pa.unify_schemas([schema, found], promote_options="permissive")


def _field(schema: pa.Schema | None, name: str) -> list[pa.Schema]:
    return [] if schema is None or name not in schema.names else [pa.schema([schema.field(name)])]


# -- reading --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Report errors of reading a file in one line that names it.

    Raises:
        UserError: for all of it.
    """
    try:
        yield
    except WrongEncoding as problem:
        raise UserError(f"{path}:{problem.line}: {problem.told('--encoding')}") from None
    except UnreadableFile as problem:
        raise UserError(str(problem)) from None
    except (OSError, ValueError, csv.Error, RecursionError, pa.ArrowException) as problem:
        reason = getattr(problem, "strerror", None) or " ".join(str(problem).split())[:300] or type(problem).__name__
        raise UserError(f"{path}: cannot be read: {reason}") from None


def _chunks(path: Path, kind: str, layout: Layout, names: Sequence[str] | None) -> Iterator[Rows]:
    """The rows of a file.

    Args:
        names: of the columns, of JSON; None for those of each chunk.
    """
    if kind == "parquet":
        yield from _parquet(path)
    elif kind in JSON:
        for first, found in _gathered(json_rows(path, layout.encoding), lambda row: len(row[0])):
            keys = names if names is not None else list(dict.fromkeys(key for _, row in found for key in row))
            rows: list[Sequence[Any]] = [[row.get(key) for key in keys] for _, row in found]
            yield Rows(first, keys, rows, [text for text, _ in found])
    elif kind == "text":
        lines = _gathered(_lines(path, layout.encoding), _characters)
        yield from (Rows(first, (TEXT,), found, None) for first, found in lines)
    else:
        records = csv_rows(path, layout.delimiter, layout.encoding)
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


def _parquet(path: Path) -> Iterator[Rows]:
    with pq.ParquetFile(path) as file:
        first = 1
        for batch in file.iter_batches(CHUNK_ROWS):
            batch.validate(full=True)  # a parquet reader takes any bytes for text
            yield ArrowRows(first, batch)
            first += batch.num_rows


def _lines(path: Path, encoding: str) -> Iterator[tuple[str]]:
    """Each line of a text."""
    with opened_text(path, encoding) as file:
        for line in file:
            yield (line.removesuffix("\n"),)
