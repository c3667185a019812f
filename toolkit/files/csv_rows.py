"""The rows of a csv file, as they are written, its delimiter and its layout."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from models.files.plain import UnreadableFile
from toolkit.files.packed import ending
from toolkit.files.text_encoding import opened_text

#: Longest field of a csv file; unclosed quotes end there.
LONGEST_FIELD = 2**26
#: Delimiters of csv files, in the order tried.
DELIMITERS = (",", ";", "\t", "|")
#: Rows and characters of a file that are read to find its delimiter.
SNIFFED_ROWS, SNIFFED_CHARACTERS = 50, 2**20
#: Characters that are read to find what is put round a text.
QUOTED_CHARACTERS = 2**16
#: What may be put round a field; ``none`` where every quote is a character of the text.
QUOTES = ('"', "'", "none")
#: What to do about quotes that enclose nothing.
PLAIN_QUOTES = "if quotes are text here, set data.quote: none (--quote none)"
#: End of the message on a header that looks like a row; the option that helps follows.
NO_HEADER = "; its first row looks like data: name the columns with"
#: A number as a table has it.
NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")
#: Words from which on the name of a column may be a text. Questions of a survey are shorter.
LONG_NAME = 12
#: Common names of columns of texts.
TEXTS = re.compile(
    r"(text|sentence|review|comment|tweet|message|content|document|title|body)s?|utterance", re.IGNORECASE
)
#: What a label of fastText begins with; the labels at the beginning of a line; and the name of each.
LABEL = "__label__"
LABELS = re.compile(rf"(?:{LABEL}\S+?(?:\s+|,\s*(?={LABEL})|$))+")
LABEL_NAME = re.compile(rf"{LABEL}(\S+?)(?=\s|,\s*{LABEL}|,?\s*$)")
#: Sentinel after the last line of a csv file: a row of its own unless a quote is open. Not a character.
END = "\ufdd0"


@dataclass(frozen=True)
class Layout:
    """Format of a text file; all but the encoding are those of csv.

    Attributes:
        quote: one of :data:`QUOTES`.
        columns: their names in a file without a header, also of JSON whose rows are lists; None for the header's.
    """

    delimiter: str = ","
    line_end: str = "\n"
    byte_order_mark: bool = False
    encoding: str = "utf-8"
    quote: str = '"'
    columns: tuple[str, ...] | None = None


def csv_layout(path: Path, needed: Sequence[str], delimiter: str | None, layout: Layout) -> Layout:
    """Find the layout of a csv file from the arguments, its ending and its first lines.

    Args:
        delimiter: None for the one that fits.
        layout: encoding, quote and columns.
    """
    encoding = layout.encoding
    with open(path, "rb") as file:
        mark = file.read(3) == codecs.BOM_UTF8
    with opened_text(path, encoding, newline="") as text:
        end = "\r\n" if text.readline(SNIFFED_CHARACTERS).endswith("\r\n") else "\n"
    delimiter = delimiter or likely_delimiter(path, replace(layout, delimiter=""), needed)
    return replace(layout, delimiter=delimiter, line_end=end, byte_order_mark=mark)


def usual_delimiter(path: Path) -> str:
    """A tab for .tsv and .tab, else a comma."""
    return "\t" if ending(path) in (".tsv", ".tab") else ","


def likely_delimiter(path: Path, layout: Layout, needed: Sequence[str] = ()) -> str:
    """Find the delimiter of a csv file: one that gives its header the needed columns and its first rows as many fields.

    Args:
        layout: its delimiter stays unless another one gives the needed columns, or several where it gives one; an
            empty one for the best of all, or the usual one where each gives a single column.
    """
    first = layout.delimiter or usual_delimiter(path)
    tried = (first, *DELIMITERS)
    found = {delimiter: _fit(path, replace(layout, delimiter=delimiter), needed) for delimiter in tried}
    best = max(found, key=lambda delimiter: found[delimiter])
    better = found[best][:2] > found[first][:2] if layout.delimiter else found[best][1]
    return best if better else first


def _fit(path: Path, layout: Layout, needed: Sequence[str]) -> tuple[bool, bool, float, int]:
    """Whether the header has the needed columns, and several; the share of rows that are as wide; their width."""
    header, *rows = first_rows(path, layout, SNIFFED_ROWS) or [[]]
    alike = sum(len(row) == len(header) for row in rows) / max(len(rows), 1)
    several = len(header) > 1 and len(header) == len(layout.columns or header)
    return set(needed) <= set(layout.columns or header), several, alike, len(header)


def first_rows(path: Path, layout: Layout, count: int) -> list[list[str]]:
    """The first rows, with the header if there is one, whatever their width; fewer if they are very long."""
    head = io.StringIO(_head(path, layout.encoding), newline="")
    rows: list[list[str]] = []
    with long_fields(), contextlib.suppress(csv.Error):
        rows += itertools.islice(filter(None, _reader(head, layout)), count)
    return rows


def _head(path: Path, encoding: str) -> str:
    with opened_text(path, encoding, newline="") as file:
        return file.read(SNIFFED_CHARACTERS)


def _reader(lines: Iterable[str], layout: Layout) -> Any:
    """Return a :func:`csv.reader`; or, where blanks part columns that have names, one of words and the line's rest."""
    if layout.delimiter == " " and layout.columns:
        return _Words(lines, len(layout.columns))
    quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if layout.quote == "none" else {"quotechar": layout.quote}
    return csv.reader(lines, delimiter=layout.delimiter, **quoting)


def labels_and_text(line: str) -> list[str]:
    """Return the labels that a line of fastText begins with, without prefix and with blanks between, and its text."""
    labels = LABELS.match(line)
    end = labels.end() if labels else 0
    return [" ".join(LABEL_NAME.findall(line[:end])), line[end:].strip()]


class _Words:
    """The rows of lines that begin with words, each a column; the last column has the rest of the line.

    The lines of fastText begin with any number of labels, which are one column.
    """

    def __init__(self, lines: Iterable[str], count: int) -> None:
        self.line_num, self._lines, self._count = 0, iter(lines), count
        self._has_labels = False

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines).rstrip("\r\n")
        self.line_num += 1
        self._has_labels |= self.line_num == 1 and self._count == 2 and line.startswith(LABEL)
        if self._has_labels and line and line != END:
            return labels_and_text(line)
        return line.split(" ", self._count - 1) if line else []


def has_single_quotes(path: Path, encoding: str) -> bool:
    """Whether at least half of the first rows have a field within ``'``, and no field begins with ``"``."""
    head = _head(path, encoding)[:QUOTED_CHARACTERS].replace("\r\n", "\n")
    begin = rf"(?:^|(?<=[{re.escape(''.join(DELIMITERS))}]))"
    bare, count = re.subn(rf"{begin}'(?:[^']|'')*'(?=[{re.escape(''.join(DELIMITERS))}]|$)", ".", head, flags=re.M)
    return 2 * count >= max(len(bare.splitlines()), 1) and not re.search(f'{begin}"', bare, re.M)


def has_plain_quotes(path: Path, encoding: str) -> bool:
    """Whether quotes are text in a file parted by tabs: as such, all rows are as wide, and one begins a field that it
    does not end."""
    rows = first_rows(path, Layout("\t", encoding=encoding, quote="none"), SNIFFED_CHARACTERS) or [[]]
    opened = any(cell.startswith('"') and (cell == '"' or not cell.endswith('"')) for row in rows for cell in row)
    return opened and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1


def lacks_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first of some rows looks like the others.

    A cell speaks for that if it is one of the values of a column that has few, or a text as long as the others of its
    column. It speaks against it if it is none of the few values. A word above numbers is a header's, and so is a common
    name of texts above texts.
    """
    first = list(rows[0])
    others = [row for row in rows[1:] if len(row) == len(first) and list(row) != first]
    if len(first) < 2 or len(set(first)) < len(first) or not others:
        return False
    if all(not name.strip() or name == str(index) for index, name in enumerate(first)):
        return False  # as pandas writes columns that have no names
    columns = [(name, [row[index] for row in others if row[index].strip()]) for index, name in enumerate(first)]
    if any(values and not NUMBER.fullmatch(name) and all(map(NUMBER.fullmatch, values)) for name, values in columns):
        return False
    if any(_has_many(values) and TEXTS.fullmatch(name.strip()) and name not in values for name, values in columns):
        return False
    speaking = [_is_a_value(name, values) for name, values in columns if name.strip() and values]
    return speaking.count(True) > 0 and speaking.count(True) >= speaking.count(False)


def _is_a_value(name: str, values: Sequence[str]) -> bool | None:
    """Return whether the first cell of a column is a value of it; None if that is unclear."""
    if not _has_many(values):
        return name in values
    return True if len(name.split()) >= LONG_NAME and len(name) >= median(map(len, values)) / 2 else None


def _has_many(values: Sequence[str]) -> bool:
    """Return whether most values of a column occur once."""
    return 2 * len(set(values)) > len(values)


class _CsvLines:
    """The lines of a csv file, and behind them :data:`END`.

    Attributes:
        stray: whether the last one ends in a carriage return alone, and the first does not.
    """

    def __init__(self, file: Iterable[str]) -> None:
        self.ended = self.stray = False
        self._file = file

    def __iter__(self) -> Iterator[str]:
        old_mac = None
        for line in self._file:
            old_mac = line.endswith("\r") if old_mac is None else old_mac
            self.stray = line.endswith("\r") and not old_mac
            yield line
        self.ended = True
        yield END


@contextlib.contextmanager
def long_fields() -> Iterator[None]:
    """Let csv take fields of up to :data:`LONGEST_FIELD` in the ``with`` block; its limit is process-wide."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def csv_rows(path: Path, layout: Layout) -> Iterator[list[str]]:
    """Yield the names of the columns, and the fields of each row; all have the same number.

    Empty fields beyond the header's are dropped, since spreadsheets write them.

    Raises:
        UnreadableFile: a row differs, or a quote is not closed.
    """
    with long_fields(), opened_text(path, layout.encoding, newline="") as file:
        lines = _CsvLines(file)
        records = _reader(lines, layout)
        width, line, number = len(layout.columns or ()), 1, 1 if layout.columns else 0
        if layout.columns:
            yield list(layout.columns)

        def wrong(problem: object) -> UnreadableFile:
            return UnreadableFile(f"{path}:{line}:", f"{f'row {number}' if number else 'the header'} {problem}")

        while True:
            try:
                row = next(records)
            except csv.Error as problem:
                raise wrong(f"cannot be read: {problem}") from None
            if lines.ended:
                if row != [END]:
                    raise wrong(f"opens a quote and does not close it; {PLAIN_QUOTES}")
                break
            if not row and width != 1:  # in a single column, an empty line is an empty text
                line = records.line_num + 1
                continue
            row = row or [""]
            if width and len(row) != width:
                if 1 < width < len(row) and not any(row[width:]):
                    del row[width:]
                else:
                    raise wrong(_of_another_width(len(row), width, layout, lines.stray))
            width = width or len(row)
            yield row
            line, number = records.line_num + 1, number + 1
        if not width:
            raise UnreadableFile(path, "holds nothing but empty lines")


def _of_another_width(found: int, width: int, layout: Layout, stray: bool) -> str:
    inside = "that holds a carriage return" if stray else "of several lines"
    right = f"put quotes round a text {f'that holds {layout.delimiter!r}' if found > width else inside}"
    if layout.columns:
        right = "write them all" if layout.delimiter == " " else f"name one for each, or {right}"
    named = f"{width} column{'s are' if width > 1 else ' is'} named" if layout.columns else f"the header {width}"
    return f"has {found} field{'s' if found > 1 else ''} and {named}; {right}"
