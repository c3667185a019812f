"""The kind of a file's content, found from the ending of its name or from its first bytes."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from models.files.plain import UnreadableFileError
from toolkit.errors import UserError
from toolkit.files.compression import content_ending, open_unpacked
from toolkit.files.csv_rows import DELIMITERS, SNIFFED_ROWS, has_fasttext_labels, split_labels_and_text
from toolkit.files.text_encoding import BYTE_ORDER_MARKS

#: Ending of a file, without the ending of a compression -> kind of its content.
KIND_BY_ENDING = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".xlsx": "xlsx",
    ".jsonl": "json", ".json": "json", ".ndjson": "json",
    ".parquet": "parquet", ".arrow": "arrow",
    ".txt": "text", ".text": "text", ".md": "text",
}  # fmt: skip
#: Endings of archives, which are not read.
ARCHIVE_ENDINGS = (".tar", ".tgz", ".7z", ".rar")
#: Kinds without a text encoding.
BINARY_KINDS = ("parquet", "arrow", "xlsx")
#: First bytes of a file -> its kind.
KIND_BY_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow"}
#: First bytes of Excel files from before 2007, and of encrypted Excel files.
OLD_EXCEL_MAGIC = b"\xd0\xcf\x11\xe0"
#: Beginning of a line with a single label, such as ``DESC:manner``.
COLON_LABEL = re.compile(r"[A-Za-z_]+:\w+ \S")
#: Bytes at the beginning of a file that are read to detect its kind.
SAMPLE_BYTES = 2**16


def detect_kind(path: Path, default_kind: str | None = None) -> str:
    """Return the kind of a file's content: a value of :data:`KIND_BY_ENDING`.

    Args:
        path: file; it need not exist if its ending shows the kind.
        default_kind: kind of a file whose ending and content do not show it.

    Raises:
        UserError: the kind cannot be found, and `default_kind` is None; or the file is an archive.
    """
    if content_ending(path) in ARCHIVE_ENDINGS:
        raise UserError(f"{path}: is an archive; unpack it")
    kind = (
        KIND_BY_ENDING.get(content_ending(path))
        or (_detect_kind_by_content(path) if path.is_file() else None)
        or default_kind
    )
    if kind is None:
        raise UserError(f"{path}: its name should end in one of {', '.join(KIND_BY_ENDING)}, so that its kind is known")
    return kind


def _detect_kind_by_content(path: Path) -> str | None:
    """Return the kind of a data file, such as ``csv``, by its first bytes; None if it looks like plain text."""
    try:
        with open_unpacked(path) as file:
            head = file.read(SAMPLE_BYTES)
    except UnreadableFileError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if head.startswith(OLD_EXCEL_MAGIC):
        raise UserError(f"{path}: is a sheet of an Excel before 2007, or has a password; save it as .xlsx or csv")
    kind = next((kind for magic, kind in KIND_BY_MAGIC.items() if head.startswith(magic)), None)
    text = _decode_head(head)
    if kind is None and text.lstrip()[:1] in ("{", "["):
        return "json"
    return kind or ("csv" if _has_table_rows(text) or find_first_label(text) else None)


def is_text_table(path: Path) -> bool:
    """Return whether the first rows of a text file have the same number of fields, at least two, or begin with labels.

    Raises:
        UnreadableFileError: the file cannot be unpacked.
    """
    text = read_head(path)
    return _has_table_rows(text) or find_first_label(text) is not None


def read_head(path: Path) -> str:
    """Return the beginning of a text file, decoded well enough to find delimiters and line ends.

    Raises:
        UnreadableFileError: the file cannot be unpacked.
    """
    with open_unpacked(path) as file:
        return _decode_head(file.read(SAMPLE_BYTES))


def find_first_label(text: str) -> str | None:
    """Return the first label of a text whose lines all have labels; None for another text.

    Lines begin with a label of the form ``DESC:manner``, or begin or end with labels of fastText.
    """
    lines = [line for line in text.splitlines() if line][:SNIFFED_ROWS]
    if len(lines) < 2:
        return None
    if all(map(has_fasttext_labels, lines)):
        return split_labels_and_text(lines[0])[0]
    return lines[0].partition(" ")[0] if all(map(COLON_LABEL.match, lines)) else None


def _decode_head(head: bytes) -> str:
    """Decode the beginning of a text file, so that delimiters and line ends are correct."""
    encoding = next((name for mark, name in BYTE_ORDER_MARKS if head.startswith(mark)), "latin-1")
    text = head.decode(encoding, "ignore").removeprefix("\ufeff")
    return text if len(head) < SAMPLE_BYTES else text[: text.rfind("\n") + 1]


def _has_table_rows(text: str) -> bool:
    """Return whether the first rows of a text have equal numbers of fields with some delimiter, unlike prose."""
    if "\0" in text:
        return False
    for delimiter in DELIMITERS:
        try:
            records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            rows = [row for row, _ in zip(filter(None, records), range(SNIFFED_ROWS), strict=False)]
        except csv.Error:
            continue
        # In a sentence, a blank follows a comma.
        is_prose = delimiter != "\t" and (len(rows) < 3 or any(field[:1] == " " for row in rows for field in row[1:]))
        if len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])} and len(rows[0]) > 1 and not is_prose:
            return True
    return False
