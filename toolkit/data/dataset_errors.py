"""Reject data that is not plain in a folder or hub data set, and report errors of `datasets` at the recipe's line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import datasets

from models.files.hub import remove_partial_download, request_refusal
from models.files.hub_errors import RESUMES, HubError, HubRequest, explain_error
from toolkit.data.rows import READER_MODULES, describe_error, reraise_full_disk, silence_log
from toolkit.errors import UserError
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.yaml_source import suggest


def check_reader(recipe: Recipe, builder: Any, allowed_modules: Collection[str]) -> None:
    """Raise UserError if `datasets` would read the data with a module that is not in `allowed_modules`."""
    module = type(builder).__module__
    if module not in allowed_modules:
        data_kind = module.rpartition(".")[2]
        raise recipe.error(
            "data.dataset",
            f"{recipe.data.dataset} holds data of the kind {data_kind}, which is not read here; "
            f"it should consist of files of one of the kinds {', '.join(READER_MODULES)}",
        )


@contextlib.contextmanager
def explain_load_errors(
    recipe: Recipe,
    hub_file: HubRequest | None = None,
    find_unfetched: Callable[[], str | None] = lambda: None,
    library_path: Path | None = None,
) -> Iterator[None]:
    """Convert exceptions of `datasets` in the ``with`` block to a UserError at the recipe's line.

    Args:
        recipe: recipe that names the data.
        hub_file: the hub data set; None for a folder.
        find_unfetched: function that returns the file that was not fetched completely; None if it is unknown.
        library_path: path of the folder that was passed to `datasets`, which its messages name.
    """
    try:
        with silence_log():
            yield
    except UserError:
        raise
    except Exception as error:
        reraise_full_disk(error)
        if hub_file is not None and (hub_error := _explain_hub_error(error, hub_file, find_unfetched)):
            message = str(hub_error)
            if recipe.data.streaming:  # a streamed file is not stored
                message = message.replace(RESUMES, "")
            raise recipe.error("data.dataset", message) from None
        reason = (
            describe_error(error)
            if library_path is None
            else describe_error(error).replace(str(library_path), recipe.data.dataset)
        )
        if reason.startswith(("Config name is missing", "BuilderConfig")):
            raise _build_config_error(recipe, reason) from None
        raise recipe.error("data.dataset", f"cannot load {recipe.data.dataset}: {reason[:300]}") from None


def _explain_hub_error(
    error: Exception, hub_file: HubRequest, find_unfetched: Callable[[], str | None]
) -> HubError | None:
    """Return the error of the hub, even if the library only reports a missing data set; None for other errors.

    Args:
        error: exception of the library.
        hub_file: request to the hub that failed.
        find_unfetched: function that returns the first missing file, or None.
    """
    if isinstance(error, datasets.exceptions.DatasetNotFoundError):
        return request_refusal(hub_file._replace(file="README.md"))
    hub_error = explain_error(error, hub_file)
    if (
        hub_error is None
        or hub_error.reason not in ("interrupted", "corrupt", "offline")
        or (file := find_unfetched()) is None
    ):
        return hub_error
    hub_file = hub_file._replace(file=file)
    if hub_error.reason == "corrupt":
        remove_partial_download(hub_file)
    return explain_error(error, hub_file)


def _build_config_error(recipe: Recipe, reason: str) -> UserError:
    """Return the error for a `data.config` that is missing or unknown.

    Args:
        recipe: recipe that names the data.
        reason: message of the library, which lists the existing configurations.
    """
    name, config = recipe.data.dataset, recipe.data.config
    known_configs = re.findall(r"'([^']+)'", reason[reason.find("[") : reason.find("]")])
    problem = "missing" if config is None else f"{config}: {name} has no such configuration"
    introduction = f"{name} has the configurations" if config is None else "it has"
    return recipe.error(
        "data.config", f"{problem}; {introduction} {', '.join(known_configs)}{suggest(config or '', known_configs)}"
    )
