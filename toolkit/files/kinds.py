"""What a file holds: by the ending of its name, or by its content where the ending says nothing."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from models.files.plain import UnreadableFile
from toolkit.errors import UserError
from toolkit.files.csv_rows import DELIMITERS, LABEL, SNIFFED_ROWS, labels_and_text
from toolkit.files.packed import ending, opened
from toolkit.files.text_encoding import MARKS

#: A file's ending, without that of compression -> what it holds. JSON is read as a list of rows or row after row.
KINDS = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".xlsx": "xlsx",
    ".jsonl": "json", ".json": "json", ".ndjson": "json",
    ".parquet": "parquet", ".arrow": "arrow",
    ".txt": "text", ".text": "text", ".md": "text",
}  # fmt: skip
#: Endings of archives of files.
ARCHIVES = (".tar", ".tgz", ".7z", ".rar")
#: Kinds that have no encoding.
BINARY = ("parquet", "arrow", "xlsx")
#: First bytes of a file -> its kind.
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow"}
#: First bytes of Excel's files before 2007, and of its encrypted ones.
OLD_EXCEL = b"\xd0\xcf\x11\xe0"
#: A line that begins with its only label.
LABEL_PREFIX = re.compile(r"[A-Za-z_]+:\w+ \S")
#: Bytes that are looked at.
LOOKED_AT = 2**16


def kind_of(path: Path, otherwise: str | None = None) -> str:
    """Return the kind of a file's content: a value of :data:`KINDS`.

    Args:
        otherwise: the kind if neither the file's ending nor its content shows it.

    Raises:
        UserError: neither shows it, and there is no ``otherwise``.
    """
    if ending(path) in ARCHIVES:
        raise UserError(f"{path}: is an archive; unpack it")
    kind = KINDS.get(ending(path)) or (_by_content(path) if path.is_file() else None) or otherwise
    if kind is None:
        raise UserError(f"{path}: its name should end in one of {', '.join(KINDS)}, so that its kind is known")
    return kind


def _by_content(path: Path) -> str | None:
    try:
        with opened(path) as file:
            head = file.read(LOOKED_AT)
    except UnreadableFile as problem:
        raise UserError(str(problem)) from None
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror}") from None
    if head.startswith(OLD_EXCEL):
        raise UserError(f"{path}: is a sheet of an Excel before 2007, or has a password; save it as .xlsx or csv")
    known = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    text = _decoded(head)
    if known is None and text.lstrip()[:1] in ("{", "["):
        return "json"
    return known or ("csv" if _is_table(text) or first_label(text) else None)


def is_table(path: Path) -> bool:
    """Whether the first rows of a text have as many fields each, two or more; or begin with labels. Raises
    UnreadableFile if it cannot be unpacked."""
    text = head_of(path)
    return _is_table(text) or first_label(text) is not None


def head_of(path: Path) -> str:
    """The beginning of a text, good for its delimiters and line ends. Raises UnreadableFile if it cannot be
    unpacked."""
    with opened(path) as file:
        return _decoded(file.read(LOOKED_AT))


def first_label(text: str) -> str | None:
    """The first label of a text whose lines begin with ``DESC:manner``, or with labels as fastText has them; None of
    another."""
    lines = [line for line in text.splitlines() if line][:SNIFFED_ROWS]
    if len(lines) < 2:
        return None
    if all(line.startswith(LABEL) for line in lines):
        return labels_and_text(lines[0])[0]
    return lines[0].partition(" ")[0] if all(map(LABEL_PREFIX.match, lines)) else None


def _decoded(head: bytes) -> str:
    """Decode the beginning of a text as far as delimiters and line ends need it."""
    encoding = next((name for mark, name in MARKS if head.startswith(mark)), "latin-1")
    text = head.decode(encoding, "ignore").removeprefix("\ufeff")
    return text if len(head) < LOOKED_AT else text[: text.rfind("\n") + 1]


def _is_table(text: str) -> bool:
    if "\0" in text:
        return False
    for delimiter in DELIMITERS:
        try:
            found = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            rows = [row for row, _ in zip(filter(None, found), range(SNIFFED_ROWS), strict=False)]
        except csv.Error:
            continue
        # In a sentence, a blank follows on a comma.
        prose = delimiter != "\t" and (len(rows) < 3 or any(field[:1] == " " for row in rows for field in row[1:]))
        if len(rows) > 1 and {len(row) for row in rows} == {len(rows[0])} and len(rows[0]) > 1 and not prose:
            return True
    return False
