"""How rows are read from data files: with the readers of `datasets`, what these raise or say turned into one error."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import json
import lzma
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
from datasets import Dataset, DatasetDict, Features, Value, packaged_modules

from models.files import UnreadableFile
from toolkit.recipe_keys import FILE_KINDS

# What the library keeps beside the files that it reads is known to it by names alone, and never looked at again.
datasets.disable_caching()

#: The classes of `datasets` that read the kinds of :data:`toolkit.recipe_keys.FILE_KINDS`.
READERS = {kind: f"{packaged_modules.__name__}.{kind}.{kind}" for kind in FILE_KINDS}
#: An empty csv field is an empty text, the word NA is a label like any other, and the first column is no index.
CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "index_col": False}

#: What parts the columns of csv, beside a comma.
DELIMITERS = (";", "\t", "|")

#: How a compressed file begins, and what opens it. The last three are only told apart from text.
COMPRESSED: dict[bytes, Callable[..., Any] | None] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x28\xb5\x2f\xfd": None,
    b"\x04\x22\x4d\x18": None,
    b"PK\x03\x04": None,
}

#: Rows of data are nested less deeply than this by far; pyarrow crashes on some thousands.
DEEPEST = 200
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
#: What pyarrow crashes on where the first row should be; in JSON lines, any row may be the first that it is given.
NO_ROW = rb"\s*(?:null|NaN|-?Inf)"
FIRST_IS_NO_ROW = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s*\[)?" + NO_ROW)
LINE_IS_NO_ROW = re.compile(NO_ROW)


def as_written(builder: Any, download: Callable[[str], Any] = Path) -> Any:
    """A builder of `datasets`, which leaves every column of csv as the text that is written: ``007`` is not 7, nor
    ``001`` the label ``1``. Where the data's card declares types, the columns have those.

    Args:
        download: the place of a data file -> what pandas reads: a file on this machine, or one that is open.
    """
    if type(builder).__module__ == READERS["csv"]:
        config = builder.config
        vars(config).update(CSV_OPTIONS)
        options = {**config.pd_read_csv_kwargs, "nrows": 0}
        del options["chunksize"]
        first = next(file for files in config.data_files.values() for file in files)
        names = pandas.read_csv(download(first), **options).columns
        config.features = builder.info.features or Features({str(name): Value("string") for name in names})
    return builder


def likely_delimiter(header: str) -> str | None:
    """What parts the columns of csv beside a comma, by its first line; None where that has nothing of the kind."""
    count, likely = max((header.count(character), character) for character in DELIMITERS)
    return likely if count else None


def wrong_delimiter(header: str, likely: str) -> str:
    """That a header has columns which something else parts than was thought, in words."""
    shown = header.strip() if len(header) < 60 else f"{header[:60]}..."
    return f"the columns of {shown!r} seem to be parted by {likely!r}; set data.delimiter: {json.dumps(likely)}"


def quietly(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call into `datasets` without its progress bars, which it shows for work of milliseconds too."""
    shown = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return call(*arguments, **named)
    finally:
        if not shown:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def scratch_in(folder: Path) -> Iterator[Path]:
    """A folder inside of a folder, gone at the end."""
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def prepare(builder: Any, scratch: Path, target: Path) -> None:
    """Let `datasets` read what a builder is for, and leave a folder of Arrow files for each split."""
    rows = scratch / "rows"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Length of header or names does not match length of data")
        builder.download_and_prepare(str(rows))
    for split in builder.info.splits:
        (target / split).mkdir()
        name = re.compile(rf"{re.escape(builder.dataset_name)}-{re.escape(split)}(-\d+-of-\d+)?\.arrow")
        for file in rows.iterdir():
            if name.fullmatch(file.name):
                Dataset.from_file(str(file)).data.validate(full=True)  # parquet's readers take any bytes for text
                os.replace(file, target / split / file.name)


def stored(entry: Path) -> DatasetDict:
    """The splits that :func:`prepare` left."""
    splits = DatasetDict()
    for folder in sorted(path for path in entry.iterdir() if path.is_dir()):
        files = sorted(folder.iterdir())
        splits[folder.name] = datasets.concatenate_datasets([Dataset.from_file(str(file)) for file in files])
    return splits


@contextlib.contextmanager
def explained(path: Path, kind: str, link: Path) -> Iterator[None]:
    """What `datasets` and the libraries below it raise for a file, as one error that names the file."""
    try:
        with no_log():
            yield
    except UnreadableFile:
        raise
    except Exception as problem:  # pandas, pyarrow and the library each raise what they like
        reraise_full_disk(problem)
        reason = " ".join(str(problem.__cause__ or problem).split()).replace(str(link), str(path))
        reason = reason or type(problem.__cause__ or problem).__name__
        raise UnreadableFile(path, f"cannot be read as {kind}: {reason[:300]}") from None


def reraise_full_disk(problem: BaseException) -> None:
    """A disk that is full while rows are written is not the fault of the file they come from."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise OSError(cause.errno, os.strerror(cause.errno)) from None
        cause = cause.__cause__ or cause.__context__


@contextlib.contextmanager
def no_log() -> Iterator[None]:
    """Keep the library from saying on the standard error what is raised as well."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)


def check_json(path: Path) -> None:
    """See that a file of JSON holds nothing on which pyarrow's parser crashes: null or NaN for a row, and deep nesting.

    Raises:
        UnreadableFile: it does, or is compressed in a way that cannot be looked into here.
    """
    with open(path, "rb") as file:
        begins = file.read(8)
    opener = next((opener for magic, opener in COMPRESSED.items() if begins.startswith(magic)), open)
    if opener is None:
        raise UnreadableFile(path, "is packed; unpack it")
    with opener(path, "rb") as file:
        head = file.read(4096)
        is_list = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        if FIRST_IS_NO_ROW.match(head):
            raise UnreadableFile(path, "has a number or null for its first row")
        file.seek(0)
        depth = 0
        for number, line in enumerate(file, 1):
            if not is_list and LINE_IS_NO_ROW.match(line):
                raise UnreadableFile(path, f"line {number} is a number or null, and no row")
            depth = _checked_depth(path, number, STRING.sub(b"", line), depth)


def _checked_depth(path: Path, number: int, line: bytes, depth: int) -> int:
    """How many brackets are open after a line without its strings.

    Args:
        depth: before it.
    """
    opened, closed = line.count(b"[") + line.count(b"{"), line.count(b"]") + line.count(b"}")
    if depth + opened > DEEPEST:
        characters = np.frombuffer(line, np.uint8)
        opens, closes = (np.isin(characters, np.frombuffer(pair, np.uint8)).astype(np.int64) for pair in (b"[{", b"]}"))
        if depth + np.cumsum(opens - closes).max() > DEEPEST:
            raise UnreadableFile(path, f"opens more than {DEEPEST} brackets inside of each other, line {number}")
    return max(0, depth + opened - closed)
