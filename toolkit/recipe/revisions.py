"""Resolve the commits of a run's hub repositories once, and keep the recorded commits when the run is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from models.files.hub import current_commit, request_commit, resolve_folder
from models.files.hub_errors import HubError, HubRequest
from models.files.plain import read_object
from toolkit.errors import UserError
from toolkit.files.paddle_checkpoint import get_hf_folder
from toolkit.recipe.recipe import Recipe

#: Name of the file in a run folder with the run's data and commits (:mod:`toolkit.finetune.identity`).
IDENTITY = "identity.json"


class Repository(NamedTuple):
    """A hub repository that a recipe names.

    Attributes:
        section: section of the recipe, ``model`` or ``data``, whose key ``revision`` applies to the repository.
        key: key of the recipe that names the repository.
        kind: kind of the repository, ``model`` or ``dataset``.
        wanted: name and revision for requests to the hub.
    """

    section: str
    key: str
    kind: str
    wanted: HubRequest

    def error(self, recipe: Recipe, hub_error: HubError) -> UserError:
        """Return an error of the hub as an error about the key to change."""
        is_wrong_revision = hub_error.reason == "revision" and self.wanted.revision is not None
        return recipe.error(f"{self.section}.revision" if is_wrong_revision else self.key, str(hub_error))


def repositories(recipe: Recipe) -> Iterator[Repository]:
    """Yield the hub repositories of a recipe, at most a single repository of each section."""
    if weights := recipe.hub_weights:
        yield Repository("model", "model.weights", "model", HubRequest(weights, recipe.model.revision))
    if dataset := recipe.hub_dataset:
        yield Repository("data", "data.dataset", "dataset", HubRequest(dataset, recipe.data.revision, kind="dataset"))


def resolve_commits(recipe: Recipe, folder: Path) -> list[str]:
    """Resolve the commit of each repository, so that the whole run uses the same commit.

    A run that exists already keeps its recorded commits. Otherwise the current commit of the branch is used.

    Args:
        recipe: recipe, whose commits are set.
        folder: folder of the run.

    Returns:
        Notes on branches that have moved since the run started.

    Raises:
        UserError: the commit is neither available from the hub nor in the cache.
    """
    notes = []
    commits_of_run = recorded_commits(folder)
    for repository in repositories(recipe):
        recorded_commit = commits_of_run.get(repository.section)
        if recorded_commit is None:
            resolve_commit(recipe, repository.section)
            continue
        recipe.findings.commits[repository.section] = recorded_commit
        id, revision, _, kind = repository.wanted
        current = request_commit(id, revision, kind)
        if current not in (None, recorded_commit):
            notes.append(
                f"{id} ({revision or 'main'}) has moved since this run began, from {recorded_commit} to {current}; "
                f"the run goes on with {recorded_commit}"
            )
    return notes


def resolve_commit(recipe: Recipe, section: str) -> None:
    """Resolve the current commit of the repository in a section of the recipe.

    Raises:
        UserError: the commit is neither available from the hub nor in the cache.
    """
    repository = next(candidate for candidate in repositories(recipe) if candidate.section == section)
    id, revision, _, kind = repository.wanted
    try:
        recipe.findings.commits[section] = current_commit(id, revision, kind)
    except HubError as error:
        raise repository.error(recipe, error) from None


def recorded_commits(folder: Path) -> dict[str, str]:
    """Return section -> commit of a run; empty if no run has trained in the folder."""
    if not any((folder / "checkpoints").glob("step-*")) and not (folder / "metrics.json").exists():
        return {}
    try:
        commits = read_object(folder / IDENTITY).get("commits")
    except (OSError, ValueError):  # :func:`toolkit.finetune.identity.check_identity` reports this
        return {}
    return (
        {name: commit for name, commit in commits.items() if isinstance(commit, str)}
        if isinstance(commits, dict)
        else {}
    )


def weights_folder(recipe: Recipe) -> Path | None:
    """Return the folder of ``model.weights`` in Hugging Face's layout, downloaded if it is a hub repository.

    Return None for randomly initialized weights.

    Raises:
        UserError: the weights cannot be found or read.
    """
    if recipe.model.weights is None:
        return None
    if recipe.hub_weights is None:
        try:
            return get_hf_folder(recipe.resolve(recipe.model.weights))
        except OSError as error:
            reason = f"cannot read {error.filename or recipe.model.weights}: {error.strerror or error}"
            raise recipe.error("model.weights", reason) from None
        except ValueError as error:
            raise recipe.error("model.weights", str(error)) from None
    repository = next(repositories(recipe))
    try:
        return resolve_folder(recipe.model.weights, recipe.findings.commits.get("model", recipe.model.revision))
    except HubError as error:
        raise repository.error(recipe, error) from None
    except (OSError, ValueError) as error:
        raise recipe.error("model.weights", " ".join(str(error).split())) from None


def hub_origin(recipe: Recipe, section: str) -> str | None:
    """Return ``ID at COMMIT`` for the hub repository of a section; None if the section does not use the hub."""
    commit = recipe.findings.commits.get(section)
    return commit and f"{recipe.model.weights if section == 'model' else recipe.data.dataset} at {commit}"
