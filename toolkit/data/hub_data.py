"""The rows of a hub data set. Its repository may hold plain data alone; a script in it is never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
from datasets import DatasetDict
from huggingface_hub import hf_hub_download, try_to_load_from_cache

from models.files.hub_errors import Wanted, offline
from toolkit.data.dataset_errors import check_reader, load_explained
from toolkit.data.rows import READERS, as_written, prepare, stored
from toolkit.files.cache import CACHE_VERSION, find_entry, get_or_create_entry
from toolkit.files.digest import digest_parts
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import resolve_commit

#: Reader of rows that were stored when a hub data set was read earlier, for when the hub cannot be reached.
STORED_ROWS = "datasets.packaged_modules.cache.cache"


def from_hub(recipe: Recipe) -> DatasetDict:
    """The splits of a hub data set. Its repository may hold plain data alone; a script in it is never run."""
    wanted = Wanted(recipe.data.dataset, recipe.data.revision, kind="dataset")
    commit = settled_commit(recipe)
    key = digest_parts(
        "csv of the hub", wanted.id, str(recipe.data.config), commit, datasets.__version__, CACHE_VERSION
    )
    if (csv := find_entry("rows", key)) is not None:
        return stored(csv)
    with load_explained(recipe, wanted):
        builder = builder_of(recipe)
    check_reader(recipe, builder, {*READERS.values(), STORED_ROWS})
    if type(builder).__module__ == READERS["csv"]:
        # Not in the library's own cache: other programs that load the data set expect numbers there.
        return stored(get_or_create_entry("rows", key, lambda unfinished: _prepare_csv(recipe, wanted, unfinished)))
    with load_explained(recipe, wanted, lambda: _not_fetched(builder, wanted, commit)):
        if type(builder).__module__ == STORED_ROWS:
            builder = _stored_builder(builder, wanted, commit)
        builder.download_and_prepare()
        return builder.as_dataset()


def settled_commit(recipe: Recipe) -> str:
    """Commit of the data set that the run uses; resolved now if it has not been yet. Raises as
    :func:`toolkit.recipe.revisions.resolve_commit`."""
    if "data" not in recipe.found.commits:
        resolve_commit(recipe, "data")
    return recipe.found.commits["data"]


def builder_of(recipe: Recipe, **options: Any) -> Any:
    """Return the `datasets` builder of the recipe's data set, at its commit."""
    datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False  # versions before 4 would run scripts
    name, commit = recipe.data.dataset, settled_commit(recipe)
    return datasets.load_dataset_builder(name, recipe.data.config, revision=commit, **options)


def path_in_repository(place: str) -> str:
    """Path, within its repository, of the file at ``hf://datasets/OWNER/NAME@COMMIT/FILE``."""
    return place.partition("@")[2].partition("/")[2]


def _prepare_csv(recipe: Recipe, wanted: Wanted, unfinished: Path) -> None:
    """Read a hub data set of csv files into a folder, its values as written."""
    commit = settled_commit(recipe)
    # Explained here, not around the cache: a failed download is an OSError, and would pass for the cache's.
    with scratch_folder("rows-", parent_folder=unfinished) as scratch, load_explained(recipe, wanted):
        builder = builder_of(recipe, cache_dir=str(scratch / "cache"))

        def fetched(place: str) -> str:
            return hf_hub_download(wanted.id, path_in_repository(place), repo_type="dataset", revision=commit)

        with load_explained(recipe, wanted, lambda: _not_fetched(builder, wanted, commit)):
            prepare(as_written(builder, fetched), scratch, unfinished)


def _not_fetched(builder: Any, wanted: Wanted, commit: str) -> str | None:
    """The first file of a data set that is not in the client's cache; None where they are all there."""
    for places in (builder.config.data_files or {}).values():
        for file in map(path_in_repository, places):
            if not isinstance(try_to_load_from_cache(wanted.id, file, repo_type="dataset", revision=commit), str):
                return file
    return None


def _stored_builder(builder: Any, wanted: Wanted, commit: str) -> Any:
    """Return the builder of the rows stored from this commit: the library takes the last ones, of any commit. Raises
    HubError if there are none."""
    found = Path(builder.cache_dir)  # .../CONFIG/VERSION/COMMIT
    if not (found.parent / commit).is_dir():
        raise offline(wanted._replace(revision=commit))
    return type(builder)(
        dataset_name=builder.dataset_name,
        repo_id=wanted.id,
        config_name=found.parts[-3],
        version=found.parts[-2],
        hash=commit,
    )
