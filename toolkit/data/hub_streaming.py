"""``data.streaming``: the first rows of a hub data set, which may be larger than the disk.

Only the needed parts of the files with these rows are fetched. The rows are cached by all settings that select them, so
that a resumed run, or a run without the hub, gets the same rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from datasets import DatasetDict
from datasets.arrow_writer import ArrowWriter
from datasets.download import StreamingDownloadManager
from datasets.utils.file_utils import xopen
from tqdm import tqdm

from models.files.hub_errors import HubRequest, offline_error
from toolkit.data.dataset_errors import check_reader, explain_load_errors
from toolkit.data.hub_data import STORED_ROWS, get_commit, make_builder, path_in_repository
from toolkit.data.row_selection import make_row_filter
from toolkit.data.rows import READER_MODULES, call_without_progress, keep_csv_text, load_stored_rows
from toolkit.data.splits import SPLITS, choose_splits
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.digest import digest_parts
from toolkit.files.whole import write_text
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.recipe import Recipe

#: File of a cache entry with the :class:`StreamedRows` of each split.
COUNTS_FILE = "counts.json"
#: Rows between updates of the progress bar.
ROWS_PER_UPDATE = 100


class StreamedRows(NamedTuple):
    """Row counts of a streamed split.

    Attributes:
        rows: number of rows that are used.
        read: number of rows that were examined to find them.
        all: whether the split has no further rows.
    """

    rows: int
    read: int
    all: bool


def load_streamed_rows(recipe: Recipe) -> DatasetDict:
    """Return the first ``data.limit`` rows of each used split that ``data.filter`` accepts.

    They are in the order of the data set or, with ``data.shuffle_buffer``, drawn with the recipe's seed.

    Raises:
        UserError: a split has no limit or no accepted row, or the hub reports an error.
    """
    hub_file = HubRequest(recipe.data.dataset, recipe.data.revision, kind="dataset")
    entry = call_without_progress(
        get_or_create_entry,
        "rows",
        _cache_key(recipe),
        lambda unfinished_folder: _fetch_rows(recipe, hub_file, unfinished_folder),
    )
    counts = json.loads((entry / COUNTS_FILE).read_text(encoding="utf-8"))
    for split_name, row_counts in counts.items():
        recipe.findings.note(_describe_streamed_rows(recipe, split_name, StreamedRows(*row_counts)))
    splits = load_stored_rows(entry)
    return DatasetDict({split_name: splits[split_name] for split_name in SPLITS if split_name in splits})


def _cache_key(recipe: Recipe) -> str:
    """Return the key of the rows in the cache, from all settings that select them."""
    data = recipe.data
    selection = [data.config, data.splits, data.limit.model_dump(), data.filter, data.shuffle_buffer]
    seed = recipe.seed if data.shuffle_buffer else None
    versions = (datasets.__version__, CACHE_VERSION)
    return digest_parts("streamed", data.dataset, get_commit(recipe), json.dumps([*selection, seed]), *versions)


def _describe_streamed_rows(recipe: Recipe, split_name: str, row_counts: StreamedRows) -> str:
    """Return a note on the number of rows that were streamed, and on their order.

    Args:
        recipe: recipe of the run.
        split_name: split of the recipe.
        row_counts: numbers of rows that were read and kept.
    """
    limit, has_filter = getattr(recipe.data.limit, split_name), recipe.data.filter is not None
    if row_counts.all:
        share_note = "that data.filter keeps" if has_filter else "in all"
        split_size = f"the {split_name} split has {row_counts.rows} rows {share_note}"
        return f"data.streaming: {split_size}, fewer than the {limit} of data.limit"
    if recipe.data.shuffle_buffer is not None:
        order_note = f"drawn among {recipe.data.shuffle_buffer} at a time"
    else:
        order_note = "in the order of the data set; data.shuffle_buffer draws them"
    examined_note = f", of {row_counts.read} that were looked at" if has_filter else ""
    return f"data.streaming: {row_counts.rows} {split_name} rows{examined_note}, {order_note}"


def _fetch_rows(recipe: Recipe, hub_file: HubRequest, unfinished_folder: Path) -> None:
    """Write the rows of each split, and their row counts, into a folder.

    Args:
        recipe: recipe of the run.
        hub_file: description of the request to the hub, for errors.
        unfinished_folder: folder for the rows.
    """
    counts = {}
    opened_files: list[str] = []  # locations of the files that were opened, in order
    explained_errors = explain_load_errors(
        recipe, hub_file, lambda: path_in_repository(opened_files[-1]) if opened_files else None
    )
    with scratch_folder("rows-", parent_folder=unfinished_folder) as scratch, explained_errors:
        builder = make_builder(recipe, cache_dir=str(scratch / "cache"))
        if type(builder).__module__ == STORED_ROWS:  # the library's cache has only whole data sets
            raise offline_error(hub_file._replace(revision=get_commit(recipe)))
        check_reader(recipe, builder, READER_MODULES.values())
        files_by_split = {str(name): list(files) for name, files in builder.config.data_files.items()}
        source_splits = choose_splits(recipe, files_by_split)
        _check_limits(recipe, source_splits)
        for split_name, name in source_splits.items():
            (unfinished_folder / split_name).mkdir()
            target = unfinished_folder / split_name / "rows.arrow"
            counts[split_name] = _fetch_split(
                recipe, builder, split_name, name, files_by_split[name], target, opened_files
            )
    write_text(unfinished_folder / COUNTS_FILE, json.dumps(counts))


def _check_limits(recipe: Recipe, source_splits: Mapping[str, str]) -> None:
    """Check that ``data.limit`` has a number of rows for each streamed split.

    Args:
        recipe: recipe of the run.
        source_splits: name of the split on the hub, by split of the recipe.
    """
    for split_name, name in source_splits.items():
        if getattr(recipe.data.limit, split_name) is None:
            message = f"missing: data.streaming needs the number of rows of the split {name} to fetch"
            raise recipe.error(f"data.limit.{split_name}", f"{message}; set it, or data.splits: {{{split_name}: null}}")


def _fetch_split(
    recipe: Recipe, builder: Any, split_name: str, name: str, files: list[str], target: Path, opened_files: list[str]
) -> StreamedRows:
    """Write the rows of a split into an Arrow file, and append each file to `opened_files` when it is opened.

    Args:
        recipe: recipe of the run.
        builder: the library's builder of the data set.
        split_name: split of the recipe.
        name: name of the split on the hub.
        files: files of the split.
        target: file to write.
        opened_files: list that each opened file is appended to.
    """
    limit, buffer_size = getattr(recipe.data.limit, split_name), recipe.data.shuffle_buffer
    generator = np.random.default_rng([recipe.seed, 3, SPLITS.index(split_name)])
    if buffer_size is not None:
        files = [files[index] for index in generator.permutation(len(files))]
    rows = _read_split_rows(builder, name, files, opened_files)
    first_row = next(rows, None)  # from here on the builder knows the columns
    if first_row is None:
        raise recipe.error("data.dataset", f"the split {name} is empty")
    features = builder.info.features or getattr(builder.config, "features", None)
    is_accepted = make_row_filter(recipe, split_name, features)
    num_used = num_examined = 0
    progress_bar = tqdm(total=limit, desc=f"fetching {split_name}", unit=" rows", delay=2, leave=False)
    with ArrowWriter(path=str(target), features=features) as writer, progress_bar:
        for num_examined, row in enumerate(
            _shuffle_rows(itertools.chain([first_row], rows), buffer_size, generator), 1
        ):
            if is_accepted(row):
                writer.write(row)
                num_used += 1
                progress_bar.update()
            if not num_examined % ROWS_PER_UPDATE:
                progress_bar.set_postfix_str(f"{num_examined} looked at")
            if num_used == limit:  # before the next row is requested
                break
        if not num_used:
            raise recipe.error(
                "data.filter", f"no row of the {split_name} split has these values, of {num_examined} in all"
            )
        writer.finalize()
    return StreamedRows(num_used, num_examined, num_used < limit)


def _read_split_rows(builder: Any, name: str, files: list[str], opened_files: list[str]) -> Iterator[Any]:
    """Yield the rows of a split file by file, and append each file to `opened_files` before it is read.

    Args:
        builder: the library's builder of the data set.
        name: name of the split on the hub.
        files: files of the split.
        opened_files: list that each opened file is appended to.
    """
    for location in files:
        opened_files.append(location)
        builder.config.data_files = {name: [location]}
        if location == files[0]:
            keep_csv_text(builder, lambda location: xopen(StreamingDownloadManager().extract(location), "rb"))
        yield from builder.as_streaming_dataset(split=name)


def _shuffle_rows(rows: Iterator[Any], buffer_size: int | None, generator: np.random.Generator) -> Iterator[Any]:
    """Yield the rows, each drawn from a buffer of ``buffer_size`` rows; in their order if it is None.

    The library's own shuffling opens many files at a time; how many depends on its version.
    """
    if buffer_size is None:
        yield from rows
        return
    held_rows: list[Any] = []
    for row in rows:
        if len(held_rows) < buffer_size:
            held_rows.append(row)
            continue
        index = int(generator.integers(buffer_size))
        yield held_rows[index]
        held_rows[index] = row
    for index in generator.permutation(len(held_rows)):
        yield held_rows[index]
