"""``data.streaming``: the first rows of a hub data set, which may be larger than the disk.

Only the files that hold these rows are fetched, and of each only as much as is read. The rows are cached by all that
selects them, so that a resumed run, or one without the hub, gets the same.
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

from models.files.hub_errors import Wanted, offline
from toolkit.data.dataset_errors import check_reader, load_explained
from toolkit.data.hub_data import STORED_ROWS, builder_of, path_in_repository, settled_commit
from toolkit.data.row_selection import row_filter
from toolkit.data.rows import READERS, as_written, quietly, stored
from toolkit.data.splits import SPLITS, chosen
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.digest import digest_parts
from toolkit.files.whole import write_text
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.recipe import Recipe

#: File of a cache entry: by split, how its rows were found.
COUNTS = "counts.json"
#: Rows between updates of the progress bar.
SHOWN_ROWS = 100


class StreamedRows(NamedTuple):
    """How the rows of a split were found.

    Attributes:
        rows: used ones.
        read: rows examined to find them.
        all: whether these are all that the split has.
    """

    rows: int
    read: int
    all: bool


def streamed(recipe: Recipe) -> DatasetDict:
    """The first rows of each split that is used: ``data.limit`` of those that ``data.filter`` leaves, in the order of
    the data set or, with ``data.shuffle_buffer``, drawn by the recipe's seed. Raises UserError at the recipe's line for
    a split without a limit, or with no row left by the filter, and for a failure of the hub."""
    wanted = Wanted(recipe.data.dataset, recipe.data.revision, kind="dataset")
    entry = quietly(get_or_create_entry, "rows", _key(recipe), lambda unfinished: _fetch(recipe, wanted, unfinished))
    counts = json.loads((entry / COUNTS).read_text(encoding="utf-8"))
    for split, found in counts.items():
        recipe.found.note(_note(recipe, split, StreamedRows(*found)))
    rows = stored(entry)
    return DatasetDict({split: rows[split] for split in SPLITS if split in rows})


def _key(recipe: Recipe) -> str:
    """Equal for equal rows."""
    data = recipe.data
    chosen_by = [data.config, data.splits, data.limit.model_dump(), data.filter, data.shuffle_buffer]
    seed = recipe.seed if data.shuffle_buffer else None
    versions = (datasets.__version__, CACHE_VERSION)
    return digest_parts("streamed", data.dataset, settled_commit(recipe), json.dumps([*chosen_by, seed]), *versions)


def _note(recipe: Recipe, split: str, found: StreamedRows) -> str:
    limit, filtered = getattr(recipe.data.limit, split), recipe.data.filter is not None
    if found.all:
        which = "that data.filter keeps" if filtered else "in all"
        return f"data.streaming: the {split} split has {found.rows} rows {which}, fewer than the {limit} of data.limit"
    if recipe.data.shuffle_buffer is not None:
        how = f"drawn among {recipe.data.shuffle_buffer} at a time"
    else:
        how = "in the order of the data set; data.shuffle_buffer draws them"
    kept_of = f", of {found.read} that were looked at" if filtered else ""
    return f"data.streaming: {found.rows} {split} rows{kept_of}, {how}"


def _fetch(recipe: Recipe, wanted: Wanted, unfinished: Path) -> None:
    """Write the rows of each split, and how they were found."""
    counts = {}
    begun: list[str] = []  # files read so far
    reading = load_explained(recipe, wanted, lambda: path_in_repository(begun[-1]) if begun else None)
    with scratch_folder("rows-", parent_folder=unfinished) as scratch, reading:
        builder = builder_of(recipe, cache_dir=str(scratch / "cache"))
        if type(builder).__module__ == STORED_ROWS:  # the library's own copy is for those who load the whole data set
            raise offline(wanted._replace(revision=settled_commit(recipe)))
        check_reader(recipe, builder, READERS.values())
        places = {str(name): list(files) for name, files in builder.config.data_files.items()}
        used = chosen(recipe, places)
        _check_limits(recipe, used)
        for split, name in used.items():
            (unfinished / split).mkdir()
            target = unfinished / split / "rows.arrow"
            counts[split] = _fetch_split(recipe, builder, split, name, places[name], target, begun)
    write_text(unfinished / COUNTS, json.dumps(counts))


def _check_limits(recipe: Recipe, used: Mapping[str, str]) -> None:
    for split, name in used.items():
        if getattr(recipe.data.limit, split) is None:
            what = f"missing: data.streaming needs the number of rows of the split {name} to fetch"
            raise recipe.error(f"data.limit.{split}", f"{what}; set it, or data.splits: {{{split}: null}}")


def _fetch_split(
    recipe: Recipe, builder: Any, split: str, name: str, files: list[str], target: Path, begun: list[str]
) -> StreamedRows:
    """Write the rows of a split into an Arrow file; the list ``begun`` gets each file when it is read."""
    limit, buffer = getattr(recipe.data.limit, split), recipe.data.shuffle_buffer
    draws = np.random.default_rng([recipe.seed, 3, SPLITS.index(split)])
    if buffer is not None:
        files = [files[place] for place in draws.permutation(len(files))]
    rows = _rows(builder, name, files, begun)
    first = next(rows, None)  # from here on the builder knows the columns
    if first is None:
        raise recipe.error("data.dataset", f"the split {name} is empty")
    features = builder.info.features or getattr(builder.config, "features", None)
    fits = row_filter(recipe, split, features)
    found = read = 0
    bar = tqdm(total=limit, desc=f"fetching {split}", unit=" rows", delay=2, leave=False)
    with ArrowWriter(path=str(target), features=features) as writer, bar:
        for read, row in enumerate(_shuffled(itertools.chain([first], rows), buffer, draws), 1):
            if fits(row):
                writer.write(row)
                found += 1
                bar.update()
            if not read % SHOWN_ROWS:
                bar.set_postfix_str(f"{read} looked at")
            if found == limit:  # before the next row is asked for
                break
        if not found:
            raise recipe.error("data.filter", f"no row of the {split} split has these values, of {read} in all")
        writer.finalize()
    return StreamedRows(found, read, found < limit)


def _rows(builder: Any, name: str, files: list[str], begun: list[str]) -> Iterator[Any]:
    """Yield the rows of a split file by file, so that it is known which one is read."""
    for place in files:
        begun.append(place)
        builder.config.data_files = {name: [place]}
        if place == files[0]:
            as_written(builder, lambda place: xopen(StreamingDownloadManager().extract(place), "rb"))
        yield from builder.as_streaming_dataset(split=name)


def _shuffled(rows: Iterator[Any], buffer: int | None, draws: np.random.Generator) -> Iterator[Any]:
    """Yield the rows, each drawn from ``buffer`` rows held at a time; in their order if it is None.

    The library's own shuffling opens many files at a time; how many depends on its version.
    """
    if buffer is None:
        yield from rows
        return
    held: list[Any] = []
    for row in rows:
        if len(held) < buffer:
            held.append(row)
            continue
        place = int(draws.integers(buffer))
        yield held[place]
        held[place] = row
    for place in draws.permutation(len(held)):
        yield held[place]
