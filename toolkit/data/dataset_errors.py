"""Refuse all but plain data in a folder or a hub data set, and report what `datasets` raises at the recipe's line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import datasets

from models.files.hub import forget_partial, refusal
from models.files.hub_errors import GOES_ON, HubError, Wanted, explain
from toolkit.data.rows import READERS, no_log, reraise_full_disk, said
from toolkit.errors import UserError
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.yaml_source import suggest


def check_reader(recipe: Recipe, builder: Any, allowed: Collection[str]) -> None:
    """Refuse what `datasets` would read with anything but a reader of plain data."""
    module = type(builder).__module__
    if module not in allowed:
        found = module.rpartition(".")[2]
        raise recipe.error(
            "data.dataset",
            f"{recipe.data.dataset} holds data of the kind {found}, which is not read here; "
            f"it should consist of files of one of the kinds {', '.join(READERS)}",
        )


@contextlib.contextmanager
def load_explained(
    recipe: Recipe,
    wanted: Wanted | None = None,
    lacking: Callable[[], str | None] = lambda: None,
    scratch: Path | None = None,
) -> Iterator[None]:
    """Report what `datasets` raises for a folder or a hub data set, at the recipe's line.

    Args:
        wanted: the data set of the hub; None for a folder.
        lacking: gives its file that was not fetched completely, if the client does not; None if not known.
        scratch: the folder's path in the library.
    """
    try:
        with no_log():
            yield
    except UserError:
        raise
    except Exception as problem:
        reraise_full_disk(problem)
        if wanted is not None and (explained := _of_the_hub(problem, wanted, lacking)):
            told = str(explained)
            if recipe.data.streaming:  # nothing is kept of a streamed file
                told = told.replace(GOES_ON, "")
            raise recipe.error("data.dataset", told) from None
        reason = said(problem) if scratch is None else said(problem).replace(str(scratch), recipe.data.dataset)
        if reason.startswith(("Config name is missing", "BuilderConfig")):
            raise _config_error(recipe, reason) from None
        raise recipe.error("data.dataset", f"cannot load {recipe.data.dataset}: {reason[:300]}") from None


def _of_the_hub(problem: Exception, wanted: Wanted, lacking: Callable[[], str | None]) -> HubError | None:
    """Return the hub's answer, also where the library only reports that there is no such data set."""
    if isinstance(problem, datasets.exceptions.DatasetNotFoundError):
        return refusal(wanted._replace(file="README.md"))
    explained = explain(problem, wanted)
    if (
        explained is None
        or explained.reason not in ("interrupted", "corrupt", "offline")
        or (file := lacking()) is None
    ):
        return explained
    wanted = wanted._replace(file=file)
    if explained.reason == "corrupt":
        forget_partial(wanted)
    return explain(problem, wanted)


def _config_error(recipe: Recipe, reason: str) -> UserError:
    """Return the error for a `data.config` that is missing or names no configuration of the data. ``reason`` is the
    library's message, which lists those there are."""
    name, config = recipe.data.dataset, recipe.data.config
    known = re.findall(r"'([^']+)'", reason[reason.find("[") : reason.find("]")])
    wrong = "missing" if config is None else f"{config}: {name} has no such configuration"
    has = f"{name} has the configurations" if config is None else "it has"
    return recipe.error("data.config", f"{wrong}; {has} {', '.join(known)}{suggest(config or '', known)}")
