"""Read the rows of a folder or hub data set with `datasets`, store rows as Arrow files, and load stored rows."""

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

# The library's own cache identifies data only by names, so it is not used.
datasets.disable_caching()

#: Kind of :data:`toolkit.recipe.keys.FILE_KINDS` -> module of `datasets` that reads it, which has none for Excel.
READER_MODULES = {kind: f"{packaged_modules.__name__}.{kind}.{kind}" for kind in FILE_KINDS if kind != "xlsx"}
#: An empty csv field is an empty text, the word NA is a label like any other, and the first column is data.
CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "index_col": False}


def _set_feature(self: Features, name: str, feature: Any) -> None:
    """Set the feature of a column without the pass over all columns that `datasets` makes for each column.

    With that pass, 3,000 columns of 20 rows took minutes; without it, they take 6 seconds.
    """
    dict.__setitem__(self, name, feature)
    self._column_requires_decoding[name] = datasets.features.features.require_decoding(feature)


if hasattr(Features(), "_column_requires_decoding") and hasattr(datasets.features.features, "require_decoding"):
    Features.__setitem__ = _set_feature


def keep_csv_text(builder: Any, download: Callable[[str], Any] = Path) -> Any:
    """Configure a builder of `datasets` so that csv values stay text, and return it: ``007`` does not become 7.

    Types that the data's card declares are kept.

    Args:
        builder: builder of `datasets`; only a builder of csv is changed.
        download: function from the location of a data file to a local path or an open file.
    """
    if type(builder).__module__ == READER_MODULES["csv"]:
        config = builder.config
        vars(config).update(CSV_OPTIONS)
        options = {**config.pd_read_csv_kwargs, "nrows": 0}
        del options["chunksize"]
        first_file = next(file for files in config.data_files.values() for file in files)
        names = pandas.read_csv(download(first_file), **options).columns
        config.features = builder.info.features or Features({str(name): Value("string") for name in names})
    return builder


def call_without_progress(call: Callable[..., Any], *arguments: Any, **keyword_arguments: Any) -> Any:
    """Call a function without the progress bars of `datasets`, which it shows even for milliseconds of work."""
    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return call(*arguments, **keyword_arguments)
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()


def prepare_rows(builder: Any, scratch: Path, target: Path) -> None:
    """Read the data of a builder, and write a folder of Arrow files for each split into `target`."""
    rows_folder = scratch / "rows"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Length of header or names does not match length of data")
        builder.download_and_prepare(str(rows_folder))
    for split_name in builder.info.splits:
        (target / split_name).mkdir()
        file_pattern = re.compile(rf"{re.escape(builder.dataset_name)}-{re.escape(split_name)}(-\d+-of-\d+)?\.arrow")
        for file in rows_folder.iterdir():
            if file_pattern.fullmatch(file.name):
                Dataset.from_file(str(file)).data.validate(full=True)  # parquet's readers accept any bytes as text
                move_to_free_name(file, target / split_name / file.name)


def write_rows(features: Features, tables: Iterable[pa.Table], target: Path) -> None:
    """Write the tables of a split to an Arrow file that :func:`load_stored_rows` can read.

    Args:
        features: column types of the rows.
        tables: rows to write, as Arrow tables.
        target: file to write.
    """
    with ArrowWriter(path=str(target), features=features) as writer:
        for table in tables:
            writer.write_table(table)
        writer.finalize()


def load_stored_rows(entry: Path) -> DatasetDict:
    """Return the splits of a folder that has a folder of Arrow files for each split."""
    splits = DatasetDict()
    for folder in sorted(path for path in entry.iterdir() if path.is_dir()):
        files = sorted(folder.iterdir())
        splits[folder.name] = datasets.concatenate_datasets([Dataset.from_file(str(file)) for file in files])
    return splits


def describe_error(error: BaseException) -> str:
    """Return the message of an exception's cause, or of the exception without a cause, in one line.

    Args:
        error: exception of the library.
    """
    cause = error.__cause__ or error
    return " ".join(str(cause).split()) or type(cause).__name__


def reraise_full_disk(error: BaseException) -> None:
    """Raise the OSError of a full or read-only disk that caused an exception; do nothing for other causes.

    Args:
        error: exception of the library.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise OSError(cause.errno, os.strerror(cause.errno)) from None
        cause = cause.__cause__ or cause.__context__


@contextlib.contextmanager
def silence_log() -> Iterator[None]:
    """Prevent `datasets` from logging errors in the ``with`` block, because it also raises them."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
