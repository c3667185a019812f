"""Load a hub data set of plain data files; a script in its repository is never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
from datasets import DatasetDict
from huggingface_hub import hf_hub_download, try_to_load_from_cache

from models.files.hub_errors import HubRequest, offline_error
from toolkit.data.dataset_errors import check_reader, explain_load_errors
from toolkit.data.rows import READER_MODULES, keep_csv_text, load_stored_rows, prepare_rows
from toolkit.files.cache import CACHE_VERSION, find_entry, get_or_create_entry
from toolkit.files.digest import digest_parts
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import resolve_commit

#: Module that reads rows of a hub data set from the library's cache if the hub cannot be reached.
STORED_ROWS = "datasets.packaged_modules.cache.cache"


def load_hub_data(recipe: Recipe) -> DatasetDict:
    """Return the splits of a hub data set.

    Raises:
        UserError: the repository has data that is not plain, or the hub or the library reports an error.
    """
    hub_file = HubRequest(recipe.data.dataset, recipe.data.revision, kind="dataset")
    commit = get_commit(recipe)
    key = digest_parts(
        "csv of the hub", hub_file.id, str(recipe.data.config), commit, datasets.__version__, CACHE_VERSION
    )
    if (csv_entry := find_entry("rows", key)) is not None:
        return load_stored_rows(csv_entry)
    with explain_load_errors(recipe, hub_file):
        builder = make_builder(recipe)
    check_reader(recipe, builder, {*READER_MODULES.values(), STORED_ROWS})
    if type(builder).__module__ == READER_MODULES["csv"]:
        # Not in the library's own cache: other programs that load the data set expect numbers there.
        return load_stored_rows(
            get_or_create_entry(
                "rows", key, lambda unfinished_folder: _prepare_csv(recipe, hub_file, unfinished_folder)
            )
        )
    with explain_load_errors(recipe, hub_file, lambda: _find_unfetched_file(builder, hub_file, commit)):
        if type(builder).__module__ == STORED_ROWS:
            builder = _stored_builder(builder, hub_file, commit)
        builder.download_and_prepare()
        return builder.as_dataset()


def get_commit(recipe: Recipe) -> str:
    """Return the commit of the data set that the run uses; it is resolved at the first call.

    Raises:
        UserError: the commit cannot be resolved (:func:`toolkit.recipe.revisions.resolve_commit`).
    """
    if "data" not in recipe.findings.commits:
        resolve_commit(recipe, "data")
    return recipe.findings.commits["data"]


def make_builder(recipe: Recipe, **options: Any) -> Any:
    """Return the `datasets` builder of the recipe's data set, at its commit.

    Args:
        recipe: recipe of the run.
        **options: further options of the builder.
    """
    datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False  # versions before 4 would run scripts
    name, commit = recipe.data.dataset, get_commit(recipe)
    return datasets.load_dataset_builder(name, recipe.data.config, revision=commit, **options)


def path_in_repository(location: str) -> str:
    """Return ``FILE`` of a location ``hf://datasets/OWNER/NAME@COMMIT/FILE``."""
    return location.partition("@")[2].partition("/")[2]


def _prepare_csv(recipe: Recipe, hub_file: HubRequest, unfinished_folder: Path) -> None:
    """Read a hub data set of csv files into a folder, with uninterpreted values.

    Args:
        recipe: recipe of the run.
        hub_file: description of the request to the hub, for errors.
        unfinished_folder: folder for the rows.
    """
    commit = get_commit(recipe)
    # Errors are explained inside the cache's function: it would treat the OSError of a failed download as its own.
    with scratch_folder("rows-", parent_folder=unfinished_folder) as scratch, explain_load_errors(recipe, hub_file):
        builder = make_builder(recipe, cache_dir=str(scratch / "cache"))

        def fetch_file(location: str) -> str:
            return hf_hub_download(hub_file.id, path_in_repository(location), repo_type="dataset", revision=commit)

        with explain_load_errors(recipe, hub_file, lambda: _find_unfetched_file(builder, hub_file, commit)):
            prepare_rows(keep_csv_text(builder, fetch_file), scratch, unfinished_folder)


def _find_unfetched_file(builder: Any, hub_file: HubRequest, commit: str) -> str | None:
    """Return the first file of a data set that is missing from the client's cache; None if all are present.

    Args:
        builder: the library's builder of the data set.
        hub_file: description of the request to the hub, for errors.
        commit: commit of the data set on the hub.
    """
    for locations in (builder.config.data_files or {}).values():
        for file in map(path_in_repository, locations):
            if not isinstance(try_to_load_from_cache(hub_file.id, file, repo_type="dataset", revision=commit), str):
                return file
    return None


def _stored_builder(builder: Any, hub_file: HubRequest, commit: str) -> Any:
    """Return the builder of the cached rows of this commit; the library would use the newest rows of any commit.

    Args:
        builder: the library's builder of the data set.
        hub_file: description of the request to the hub, for errors.
        commit: commit of the data set on the hub.

    Raises:
        HubError: the cache has no rows of this commit.
    """
    cache_folder = Path(builder.cache_dir)  # .../CONFIG/VERSION/COMMIT
    if not (cache_folder.parent / commit).is_dir():
        raise offline_error(hub_file._replace(revision=commit))
    return type(builder)(
        dataset_name=builder.dataset_name,
        repo_id=hub_file.id,
        config_name=cache_folder.parts[-3],
        version=cache_folder.parts[-2],
        hash=commit,
    )
