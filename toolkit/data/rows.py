"""Read rows from data files with the readers of `datasets`, and turn what these raise or log into one error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas
from datasets import Dataset, DatasetDict, Features, Value, packaged_modules
from datasets.data_files import DataFilesDict, DataFilesList

from models.files.plain import UnreadableFile
from toolkit.data.file_check import first_fault
from toolkit.recipe.keys import FILE_KINDS

# What the library keeps beside the files that it reads is known to it by names alone, and never looked at again.
datasets.disable_caching()

#: The classes of `datasets` that read the kinds of :data:`toolkit.recipe.keys.FILE_KINDS`.
READERS = {kind: f"{packaged_modules.__name__}.{kind}.{kind}" for kind in FILE_KINDS}
#: An empty csv field is an empty text, the word NA is a label like any other, and the first column is no index.
CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "index_col": False}

#: Delimiters of csv other than a comma.
DELIMITERS = (";", "\t", "|")


def _set_one(self: Features, name: str, feature: Any) -> None:
    """Set the feature of one column, without the pass over all columns that `datasets` makes for each one. With it,
    3,000 columns of 20 rows took minutes; without, 6 seconds."""
    dict.__setitem__(self, name, feature)
    self._column_requires_decoding[name] = datasets.features.features.require_decoding(feature)


if hasattr(Features(), "_column_requires_decoding") and hasattr(datasets.features.features, "require_decoding"):
    Features.__setitem__ = _set_one


def in_train(file: Path) -> DataFilesDict:
    """Return one file as a builder's data, its name taken literally: brackets would be a pattern."""
    return DataFilesDict({"train": DataFilesList([str(file)], [()])})


def as_written(builder: Any, download: Callable[[str], Any] = Path) -> Any:
    """Make a builder of `datasets` leave every csv column as the text that is written: ``007`` is not 7, nor ``001``
    the label ``1``. Where the data's card declares types, the columns have those.

    Args:
        download: location of a data file -> what pandas reads: a local path or an open file.
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
    """Guess the delimiter, other than a comma, from the first line of csv; None where that has none."""
    count, likely = max((header.count(character), character) for character in DELIMITERS)
    return likely if count else None


def wrong_delimiter(header: str, likely: str) -> str:
    """Message that a header seems to have another delimiter than was assumed."""
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
    """Make a folder inside a folder, removed at the end."""
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def prepare(builder: Any, scratch: Path, target: Path) -> None:
    """Let `datasets` read a builder's data, and leave a folder of Arrow files for each split."""
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
def explained(path: Path, kind: str, link: Path, delimiter: str = ",") -> Iterator[None]:
    """Turn what `datasets` and the libraries below it raise for a file into one error that names file and row.

    Args:
        link: its path, as they know it.
        delimiter: of csv.
    """
    try:
        with no_log():
            yield
    except UnreadableFile:
        raise
    except Exception as problem:  # pandas, pyarrow and the library each raise what they like
        reraise_full_disk(problem)
        reason = first_fault(link, kind, delimiter) or said(problem)
        raise UnreadableFile(path, f"cannot be read as {kind}: {renamed(reason, link.parent, path)[:300]}") from None


def said(problem: BaseException) -> str:
    """Message, in one line, of what `datasets` raised, or of its cause if it has one."""
    cause = problem.__cause__ or problem
    return " ".join(str(cause).split()) or type(cause).__name__


def renamed(reason: str, scratch: Path, path: Path) -> str:
    """Replace, in a message, each path in a scratch folder by the file or folder that it stands for."""
    return re.sub(rf"(\w+://[^\s:]*::)?{re.escape(str(scratch))}[^\s'\",:)\]]*", lambda _: str(path), reason)


def reraise_full_disk(problem: BaseException) -> None:
    """Raise the error of a full or read-only disk itself: it is not the data file's fault."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise OSError(cause.errno, os.strerror(cause.errno)) from None
        cause = cause.__cause__ or cause.__context__


@contextlib.contextmanager
def no_log() -> Iterator[None]:
    """Keep the library from logging to standard error what it also raises."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
