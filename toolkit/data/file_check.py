"""Check a data file before `datasets` reads it, and refuse what would cost that library minutes, gigabytes or a crash.
Also find the fault, with its row, of a file that it cannot read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from models.files.plain import UnreadableFile
from toolkit.files.csv_rows import DELIMITERS, csv_rows
from toolkit.files.json_rows import json_rows
from toolkit.files.packed import is_packed, opened

#: Most columns of a table, or different keys in all rows of JSON. With so many, `datasets` takes 5 seconds to read 20
#: rows of csv, or 2,000 rows of JSON with a new key each; with twice as many, four times as long. From 20,000 rows with
#: a new key each it made 400 million cells, in more than 22 minutes.
MOST_COLUMNS = 2048
#: Bytes read of a csv file's first line; a header of so many columns takes a fraction of it.
LONGEST_HEADER = 2**22
#: Deepest nesting of brackets. Data stays far below it; pyarrow crashes at some thousands.
DEEPEST = 200
#: A JSON string, and the colon if it is a key.
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(?:\s*(:))?')
#: pyarrow crashes if a block starts with one of these; in JSON lines any row may start a block.
NO_ROW = rb"\s*(?:null|NaN|-?Inf)"
FIRST_IS_NO_ROW = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s*\[)?" + NO_ROW)
LINE_IS_NO_ROW = re.compile(NO_ROW)


def check_file(path: Path, named: Path, kind: str) -> None:
    """Check that a csv or JSON file can be read in the time and memory that its size suggests.

    Args:
        named: what a message calls it.
        kind: others than these are not checked.

    Raises:
        UnreadableFile: it cannot, or pyarrow's parser would crash on it, or its compression cannot be read here.
    """
    if kind == "csv":
        _check_csv(path, named)
    elif kind == "json":
        _check_json(path, named)


def progress(named: Path) -> tqdm:
    """Progress bar of the bytes read, shown after two seconds."""
    return tqdm(desc=f"looking through {named.name}", unit="B", unit_scale=True, delay=2, leave=False)


def _check_csv(path: Path, named: Path) -> None:
    with opened(path, named) as file:
        header = file.readline(LONGEST_HEADER)
        if 1 + max(header.count(one.encode()) for one in DELIMITERS) > MOST_COLUMNS:
            raise UnreadableFile(named, f"has more than {MOST_COLUMNS:,} columns in line 1; leave out what is not used")
        with progress(named) as bar:
            while is_packed(path) and (block := file.read(2**20)):  # to its end, to find a truncated one
                bar.update(len(block))


def _check_json(path: Path, named: Path) -> None:
    """Refuse null or NaN as a row, deep nesting and too many keys."""
    with opened(path, named) as file:
        head = file.read(4096)
    is_list = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    if FIRST_IS_NO_ROW.match(head):
        raise UnreadableFile(named, "has a number or null for its first row")
    depth, keys = 0, set[bytes]()
    with opened(path, named) as file, progress(named) as bar:
        for number, line in enumerate(file, 1):
            bar.update(len(line))
            if not is_list and LINE_IS_NO_ROW.match(line):
                raise UnreadableFile(named, f"line {number} is a number or null, and no row")
            depth = _checked_depth(named, number, STRING.sub(b"", line), depth)
            _add_keys(named, number, line, keys)


def _add_keys(named: Path, number: int, line: bytes, keys: set[bytes]) -> None:
    """Add the keys of a line, of any depth, to those of the lines before."""
    for found in STRING.finditer(line):
        if found[1] is not None:
            keys.add(found[0])
            if len(keys) > MOST_COLUMNS:
                more = f"has more than {MOST_COLUMNS:,} different keys, the last in line {number}: each is a column"
                raise UnreadableFile(named, f"{more}; leave out those that are not used, or write a list of pairs")


def _checked_depth(named: Path, number: int, line: bytes, depth: int) -> int:
    """Number of brackets open after a line, given without its strings.

    Args:
        depth: the number before it.
    """
    opens, closes = line.count(b"[") + line.count(b"{"), line.count(b"]") + line.count(b"}")
    if depth + opens > DEEPEST:
        characters = np.frombuffer(line, np.uint8)
        up, down = (np.isin(characters, np.frombuffer(pair, np.uint8)).astype(np.int64) for pair in (b"[{", b"]}"))
        if depth + np.cumsum(up - down).max() > DEEPEST:
            raise UnreadableFile(named, f"opens more than {DEEPEST} brackets inside of each other, line {number}")
    return max(0, depth + opens - closes)


def first_fault(path: Path, kind: str, delimiter: str) -> str | None:
    """Return the fault of a file that `datasets` cannot read, with its line or row; None if none is found.

    The library itself counts rows from 0, in JSON from the start of a block.
    """
    if kind not in ("csv", "json"):
        return None
    with contextlib.suppress(OSError, EOFError):
        with opened(path) as file:
            if strange := _line_that_is_no_text(file):
                return f"line {strange} is not UTF-8; unpack it, and set data.encoding"
        try:
            rows: Iterable = csv_rows(path, delimiter, "utf-8") if kind == "csv" else json_rows(path, "utf-8")
            for _ in rows:
                pass
        except UnreadableFile as problem:
            return str(problem).removeprefix(f"{path} ")
    return None


def _line_that_is_no_text(lines: Iterable[bytes]) -> int | None:
    for number, line in enumerate(lines, 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            return number
    return None
