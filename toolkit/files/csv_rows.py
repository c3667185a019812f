"""The rows of a csv file, with uninterpreted values, and the detection of its layout."""

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

from models.files.plain import UnreadableFileError
from toolkit.files.compression import content_ending
from toolkit.files.text_encoding import open_text

#: Most characters of a field of a csv file; a quote that is not closed ends there.
MAX_FIELD_CHARACTERS = 2**26
#: Delimiters of csv files, in the order tried.
DELIMITERS = (",", ";", "\t", "|")
#: Rows and characters of a file that are read to find its delimiter.
SNIFFED_ROWS, SNIFFED_CHARACTERS = 50, 2**20
#: Characters that are read to find the quote character.
QUOTE_SAMPLE_CHARACTERS = 2**16
#: Quote characters around a field; ``none`` if every quote is part of the text.
QUOTES = ('"', "'", "none")
#: Advice for a file whose quotes do not enclose fields.
PLAIN_QUOTES_ADVICE = "if quotes are text here, set data.quote: none (--quote none)"
#: End of the message about a header that looks like a row; an option follows.
NO_HEADER_ADVICE = "; its first row looks like data: name the columns with"
#: A number in a cell of a table.
NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")
#: Fewest words of a header cell that may be a text; questions of a survey have fewer.
MIN_TEXT_WORDS = 12
#: Common names of columns that hold texts.
TEXT_COLUMN_NAMES = re.compile(
    r"(text|sentence|review|comment|tweet|message|content|document|title|body)s?|utterance", re.IGNORECASE
)
#: Prefix of a label of fastText, the labels at the beginning or at the end of a line, and the name of each label.
FASTTEXT_PREFIX = "__label__"
FASTTEXT_LABELS = re.compile(rf"(?:{FASTTEXT_PREFIX}\S+?(?:\s+|,\s*(?={FASTTEXT_PREFIX})|$))+")
FASTTEXT_END_LABELS = re.compile(rf"(?:\s+{FASTTEXT_PREFIX}\S+?,?)+\s*$")
FASTTEXT_LABEL_NAME = re.compile(rf"{FASTTEXT_PREFIX}(\S+?)(?=\s|,\s*{FASTTEXT_PREFIX}|,?\s*$)")
#: Sentinel after the last line of a csv file, a row unless a quote is open. It is not a valid character.
END_SENTINEL = "\ufdd0"


@dataclass(frozen=True)
class Layout:
    """Format of a text file; only the encoding applies to kinds other than csv.

    Attributes:
        delimiter: character between two fields.
        line_end: characters at the end of a line.
        byte_order_mark: whether the file begins with a byte order mark.
        encoding: Python's name of the encoding.
        quote: one of :data:`QUOTES`.
        columns: column names of a file without a header, also of JSON whose rows are lists; None to read the header.
    """

    delimiter: str = ","
    line_end: str = "\n"
    byte_order_mark: bool = False
    encoding: str = "utf-8"
    quote: str = '"'
    columns: tuple[str, ...] | None = None


def find_csv_layout(path: Path, required_columns: Sequence[str], delimiter: str | None, layout: Layout) -> Layout:
    """Find the layout of a csv file from the arguments, the file's ending and its first lines.

    Args:
        path: csv file.
        required_columns: columns that the file must have.
        delimiter: delimiter of the file; None to detect it.
        layout: encoding, quote and columns of the file.
    """
    encoding = layout.encoding
    with open(path, "rb") as file:
        has_mark = file.read(3) == codecs.BOM_UTF8
    with open_text(path, encoding, newline="") as text:
        line_end = "\r\n" if text.readline(SNIFFED_CHARACTERS).endswith("\r\n") else "\n"
    delimiter = delimiter or detect_delimiter(path, replace(layout, delimiter=""), required_columns)
    return replace(layout, delimiter=delimiter, line_end=line_end, byte_order_mark=has_mark)


def default_delimiter(path: Path) -> str:
    """Return the delimiter that belongs to a file's ending: a tab for .tsv and .tab, otherwise a comma."""
    return "\t" if content_ending(path) in (".tsv", ".tab") else ","


def detect_delimiter(path: Path, layout: Layout, required_columns: Sequence[str] = ()) -> str:
    """Return the delimiter of a csv file that yields the required columns and rows of equal width.

    Args:
        path: csv file.
        layout: layout of the file. Its delimiter is kept unless another delimiter yields the required columns, or
            several columns instead of a single column. With an empty delimiter, the best delimiter is returned, or
            the default if every delimiter yields a single column.
        required_columns: columns that the file must have.
    """
    current = layout.delimiter or default_delimiter(path)
    candidates = (current, *DELIMITERS)
    rating_by_delimiter = {
        delimiter: _rate_delimiter(path, replace(layout, delimiter=delimiter), required_columns)
        for delimiter in candidates
    }
    best = max(rating_by_delimiter, key=lambda delimiter: rating_by_delimiter[delimiter])
    is_better = (
        rating_by_delimiter[best][:2] > rating_by_delimiter[current][:2]
        if layout.delimiter
        else rating_by_delimiter[best][1]
    )
    return best if is_better else current


def _rate_delimiter(path: Path, layout: Layout, required_columns: Sequence[str]) -> tuple[bool, bool, float, int]:
    """Rate a delimiter: the header has the required columns, has several columns, share of rows as wide, and width."""
    header, *rows = read_first_rows(path, layout, SNIFFED_ROWS) or [[]]
    equal_width_share = sum(len(row) == len(header) for row in rows) / max(len(rows), 1)
    has_several_columns = len(header) > 1 and len(header) == len(layout.columns or header)
    return set(required_columns) <= set(layout.columns or header), has_several_columns, equal_width_share, len(header)


def read_first_rows(path: Path, layout: Layout, max_rows: int) -> list[list[str]]:
    """Return at most `max_rows` first rows of any width, including the header; fewer if the rows are very long."""
    head_file = io.StringIO(_read_head(path, layout.encoding), newline="")
    rows: list[list[str]] = []
    with allow_long_fields(), contextlib.suppress(csv.Error):
        rows += itertools.islice(filter(None, _open_reader(head_file, layout)), max_rows)
    return rows


def _read_head(path: Path, encoding: str) -> str:
    """Return the first characters of a file, enough to detect its layout."""
    with open_text(path, encoding, newline="") as file:
        return file.read(SNIFFED_CHARACTERS)


def _open_reader(lines: Iterable[str], layout: Layout) -> Any:
    """Return an iterator over rows: :func:`csv.reader`, or :class:`_WordRows` for named columns between blanks.

    Args:
        lines: lines of the file.
        layout: layout of the file.
    """
    if layout.delimiter == " " and layout.columns:
        return _WordRows(lines, len(layout.columns))
    quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if layout.quote == "none" else {"quotechar": layout.quote}
    return csv.reader(lines, delimiter=layout.delimiter, **quoting)


def split_labels_and_text(line: str) -> list[str]:
    """Return the labels of a fastText line, without prefix and separated by blanks, and the rest of the line."""
    labels = FASTTEXT_LABELS.match(line) or FASTTEXT_END_LABELS.search(line)
    if labels is None:
        return ["", line.strip()]
    return [" ".join(FASTTEXT_LABEL_NAME.findall(labels[0])), (line[: labels.start()] + line[labels.end() :]).strip()]


def has_fasttext_labels(line: str) -> bool:
    """Return whether a line begins or ends with a label of fastText."""
    return line.startswith(FASTTEXT_PREFIX) or FASTTEXT_END_LABELS.search(line) is not None


class _WordRows:
    """Rows of lines whose first words are one column each; the last column has the rest of the line.

    A fastText line begins or ends with any number of labels, which form a single column.
    """

    def __init__(self, lines: Iterable[str], count: int) -> None:
        self.line_num, self._lines, self._count = 0, iter(lines), count
        self._has_labels = False

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines).rstrip("\r\n")
        self.line_num += 1
        self._has_labels |= self.line_num == 1 and self._count == 2 and has_fasttext_labels(line)
        if self._has_labels and line and line != END_SENTINEL:
            return split_labels_and_text(line)
        return line.split(" ", self._count - 1) if line else []


def has_single_quotes(path: Path, encoding: str) -> bool:
    """Return whether at least half of the first rows have a field within ``'``, and no field begins with ``"``."""
    head = _read_head(path, encoding)[:QUOTE_SAMPLE_CHARACTERS].replace("\r\n", "\n")
    field_start = rf"(?:^|(?<=[{re.escape(''.join(DELIMITERS))}]))"
    unquoted_head, num_quoted = re.subn(
        rf"{field_start}'(?:[^']|'')*'(?=[{re.escape(''.join(DELIMITERS))}]|$)", ".", head, flags=re.M
    )
    return 2 * num_quoted >= max(len(unquoted_head.splitlines()), 1) and not re.search(
        f'{field_start}"', unquoted_head, re.M
    )


def has_plain_quotes(path: Path, encoding: str) -> bool:
    """Return whether quotes belong to the text of a tab-separated file.

    They do if all rows have the same width without quoting, and a field begins with a quote that does not end it.
    """
    rows = read_first_rows(path, Layout("\t", encoding=encoding, quote="none"), SNIFFED_CHARACTERS) or [[]]
    has_open_quote = any(
        cell.startswith('"') and (cell == '"' or not cell.endswith('"')) for row in rows for cell in row
    )
    return has_open_quote and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1


def lacks_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row looks like the other rows, so that it is data and not a header.

    A cell is evidence for data if it equals a value of a column with few different values, or if it is as long as the
    texts of its column. It is evidence for a header if it differs from the few values of its column. A word above
    numbers, or a common name of a text column above texts, always means a header.
    """
    first_row = list(rows[0])
    other_rows = [row for row in rows[1:] if len(row) == len(first_row) and list(row) != first_row]
    if len(first_row) < 2 or len(set(first_row)) < len(first_row) or not other_rows:
        return False
    if all(not name.strip() or name == str(index) for index, name in enumerate(first_row)):
        return False  # pandas writes empty or numbered names for columns without names
    columns = [(name, [row[index] for row in other_rows if row[index].strip()]) for index, name in enumerate(first_row)]
    if any(
        column_values and not NUMBER.fullmatch(name) and all(map(NUMBER.fullmatch, column_values))
        for name, column_values in columns
    ):
        return False
    if any(
        _has_many_values(column_values) and TEXT_COLUMN_NAMES.fullmatch(name.strip()) and name not in column_values
        for name, column_values in columns
    ):
        return False
    evidence = [
        _is_column_value(name, column_values) for name, column_values in columns if name.strip() and column_values
    ]
    return evidence.count(True) > 0 and evidence.count(True) >= evidence.count(False)


def _is_column_value(name: str, column_values: Sequence[str]) -> bool | None:
    """Return whether the header cell `name` is a value of its column; None if that is unclear."""
    if not _has_many_values(column_values):
        return name in column_values
    return True if len(name.split()) >= MIN_TEXT_WORDS and len(name) >= median(map(len, column_values)) / 2 else None


def _has_many_values(column_values: Sequence[str]) -> bool:
    """Return whether a column has more different values than half of its rows."""
    return 2 * len(set(column_values)) > len(column_values)


class _CsvLines:
    """The lines of a csv file, followed by :data:`END_SENTINEL`.

    Attributes:
        has_ended: whether the sentinel has been yielded.
        has_stray_return: whether the current line ends with only a carriage return and the first line does not.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.has_ended = self.has_stray_return = False
        self._file = lines

    def __iter__(self) -> Iterator[str]:
        old_mac = None
        for line in self._file:
            old_mac = line.endswith("\r") if old_mac is None else old_mac
            self.has_stray_return = line.endswith("\r") and not old_mac
            yield line
        self.has_ended = True
        yield END_SENTINEL


@contextlib.contextmanager
def allow_long_fields() -> Iterator[None]:
    """Raise csv's process-wide limit to :data:`MAX_FIELD_CHARACTERS` in the ``with`` block."""
    previous_limit = csv.field_size_limit(MAX_FIELD_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(previous_limit)


def read_csv_rows(path: Path, layout: Layout) -> Iterator[list[str]]:
    """Yield the column names, then the fields of each row, all of the same number.

    Empty fields beyond the last column are dropped, because spreadsheets write them.

    Raises:
        UnreadableFileError: a row has another number of fields, or a quote is not closed.
    """
    with allow_long_fields(), open_text(path, layout.encoding, newline="") as file:
        lines = _CsvLines(file)
        records = _open_reader(lines, layout)
        width, line, number = len(layout.columns or ()), 1, 1 if layout.columns else 0
        if layout.columns:
            yield list(layout.columns)

        def row_error(reason: object) -> UnreadableFileError:
            return UnreadableFileError(f"{path}:{line}:", f"{f'row {number}' if number else 'the header'} {reason}")

        while True:
            try:
                row = next(records)
            except csv.Error as error:
                raise row_error(f"cannot be read: {error}") from None
            if lines.has_ended:
                if row != [END_SENTINEL]:
                    raise row_error(f"opens a quote and does not close it; {PLAIN_QUOTES_ADVICE}")
                break
            if not row and width != 1:  # in a single column, an empty line is an empty text
                line = records.line_num + 1
                continue
            row = row or [""]
            if width and len(row) != width:
                if 1 < width < len(row) and not any(row[width:]):
                    del row[width:]
                else:
                    raise row_error(
                        _describe_wrong_width(len(row), width, layout, has_stray_return=lines.has_stray_return)
                    )
            width = width or len(row)
            yield row
            line, number = records.line_num + 1, number + 1
        if not width:
            raise UnreadableFileError(path, "holds nothing but empty lines")


def _describe_wrong_width(num_fields: int, num_columns: int, layout: Layout, *, has_stray_return: bool) -> str:
    """Return the reason for a row with more or fewer fields than columns, and advice.

    Args:
        num_fields: number of fields of the row.
        num_columns: number of columns.
        layout: layout of the file.
        has_stray_return: whether the row contains a carriage return outside quotes.
    """
    quoted_content = "that holds a carriage return" if has_stray_return else "of several lines"
    advice = (
        f"put quotes round a text {f'that holds {layout.delimiter!r}' if num_fields > num_columns else quoted_content}"
    )
    if layout.columns:
        advice = "write them all" if layout.delimiter == " " else f"name one for each, or {advice}"
    expectation = (
        f"{num_columns} column{'s are' if num_columns > 1 else ' is'} named"
        if layout.columns
        else f"the header {num_columns}"
    )
    return f"has {num_fields} field{'s' if num_fields > 1 else ''} and {expectation}; {advice}"
