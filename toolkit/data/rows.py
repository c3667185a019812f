"""Read a folder's or the hub's rows with the readers of `datasets`; store rows and load those that are stored."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Value, packaged_modules
from datasets.arrow_writer import ArrowWriter

from toolkit.files.lossless import move_to_free_name
from toolkit.recipe.keys import FILE_KINDS

# What the library keeps beside the files that it reads is known to it by names alone, and never looked at again.
datasets.disable_caching()

#: The classes of `datasets` that read the kinds of :data:`toolkit.recipe.keys.FILE_KINDS`; of Excel's, it has none.
READERS = {kind: f"{packaged_modules.__name__}.{kind}.{kind}" for kind in FILE_KINDS if kind != "xlsx"}
#: An empty csv field is an empty text, the word NA is a label like any other, and the first column is no index.
CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "index_col": False}


def _set_one(self: Features, name: str, feature: Any) -> None:
    """Set the feature of one column, without the pass over all columns that `datasets` makes for each one. With it,
    3,000 columns of 20 rows took minutes; without, 6 seconds."""
    dict.__setitem__(self, name, feature)
    self._column_requires_decoding[name] = datasets.features.features.require_decoding(feature)


if hasattr(Features(), "_column_requires_decoding") and hasattr(datasets.features.features, "require_decoding"):
    Features.__setitem__ = _set_one


def as_written(builder: Any, download: Callable[[str], Any] = Path) -> Any:
    """Make a builder of `datasets` leave every csv column as the text that is written: ``007`` is not 7, nor ``001``
    the label ``1``. Where the data's card declares types, the columns have those. ``download`` maps the location of a
    data file to what pandas reads: a local path or an open file."""
    if type(builder).__module__ == READERS["csv"]:
        config = builder.config
        vars(config).update(CSV_OPTIONS)
        options = {**config.pd_read_csv_kwargs, "nrows": 0}
        del options["chunksize"]
        first = next(file for files in config.data_files.values() for file in files)
        names = pandas.read_csv(download(first), **options).columns
        config.features = builder.info.features or Features({str(name): Value("string") for name in names})
    return builder


def quietly(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call into `datasets` without its progress bars, which it shows for work of milliseconds too."""
    shown = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return call(*arguments, **named)
    finally:
        if not shown:
            datasets.enable_progress_bars()


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
                move_to_free_name(file, target / split / file.name)


def write_rows(features: Features, tables: Iterable[pa.Table], target: Path) -> None:
    """Write the rows of a split, as :func:`stored` reads them."""
    with ArrowWriter(path=str(target), features=features) as writer:
        for table in tables:
            writer.write_table(table)
        writer.finalize()


def stored(entry: Path) -> DatasetDict:
    """The splits of a folder that holds one of Arrow files for each."""
    splits = DatasetDict()
    for folder in sorted(path for path in entry.iterdir() if path.is_dir()):
        files = sorted(folder.iterdir())
        splits[folder.name] = datasets.concatenate_datasets([Dataset.from_file(str(file)) for file in files])
    return splits


def said(problem: BaseException) -> str:
    """Message, in one line, of what `datasets` raised, or of its cause if it has one."""
    cause = problem.__cause__ or problem
    return " ".join(str(cause).split()) or type(cause).__name__


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
