"""Commits of the hub repositories that a run uses: found once, recorded, and kept when the run is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from models.files.hub import current_commit, moved_to, resolve_folder
from models.files.hub_errors import HubError, Wanted
from models.files.plain import read_object
from toolkit.errors import UserError
from toolkit.files.paddle_checkpoint import hf_folder
from toolkit.recipe.recipe import Recipe

#: In a run folder: what the run was begun with (:mod:`toolkit.finetune.identity`).
IDENTITY = "identity.json"


class Repository(NamedTuple):
    """A hub repository that a recipe names.

    Attributes:
        section: of the recipe, ``model`` or ``data``; its key ``revision`` is the repository's.
        key: the one that names it.
        kind: ``model`` or ``dataset``.
    """

    section: str
    key: str
    kind: str
    wanted: Wanted

    def error(self, recipe: Recipe, problem: HubError) -> UserError:
        """Report the hub's answer at the key to be changed."""
        asked = problem.reason == "revision" and self.wanted.revision is not None
        return recipe.error(f"{self.section}.revision" if asked else self.key, str(problem))


def repositories(recipe: Recipe) -> Iterator[Repository]:
    """The hub repositories of a recipe, at most one of each section."""
    if weights := recipe.hub_weights:
        yield Repository("model", "model.weights", "model", Wanted(weights, recipe.model.revision))
    if dataset := recipe.hub_dataset:
        yield Repository("data", "data.dataset", "dataset", Wanted(dataset, recipe.data.revision, kind="dataset"))


def settle_commits(recipe: Recipe, folder: Path) -> list[str]:
    """Find each repository's commit once, so that all of a run uses the same: the one that the run in ``folder`` began
    with, or else its branch's current one. Returns notes on branches that have moved since the run began. Raises
    UserError at the recipe's line if the hub does not give it and the cache has nothing."""
    notes = []
    begun = recorded_commits(folder)
    for repository in repositories(recipe):
        known = begun.get(repository.section)
        if known is None:
            settle_commit(recipe, repository.section)
            continue
        recipe.found.commits[repository.section] = known
        id, revision, _, kind = repository.wanted
        now = moved_to(id, revision, kind)
        if now not in (None, known):
            notes.append(
                f"{id} ({revision or 'main'}) has moved since this run began, from {known} to {now}; the run goes on "
                f"with {known}"
            )
    return notes


def settle_commit(recipe: Recipe, section: str) -> None:
    """Find the current commit of a section's repository. Raises as :func:`settle_commits`."""
    repository = next(one for one in repositories(recipe) if one.section == section)
    id, revision, _, kind = repository.wanted
    try:
        recipe.found.commits[section] = current_commit(id, revision, kind)
    except HubError as error:
        raise repository.error(recipe, error) from None


def recorded_commits(folder: Path) -> dict[str, str]:
    """Return section -> commit that a run began with; empty for a folder in which none has trained yet."""
    if not any((folder / "checkpoints").glob("step-*")) and not (folder / "metrics.json").exists():
        return {}
    try:
        found = read_object(folder / IDENTITY).get("commits")
    except (OSError, ValueError):  # :func:`toolkit.finetune.identity.check_identity` says so
        return {}
    return (
        {name: commit for name, commit in found.items() if isinstance(commit, str)} if isinstance(found, dict) else {}
    )


def weights_folder(recipe: Recipe) -> Path | None:
    """The folder of ``model.weights``, in Hugging Face's form; downloaded if it is a hub id; None for new weights.
    Raises UserError at the recipe's line if there is none."""
    if recipe.model.weights is None:
        return None
    if recipe.hub_weights is None:
        try:
            return hf_folder(recipe.resolve(recipe.model.weights))
        except OSError as error:
            reason = f"cannot read {error.filename or recipe.model.weights}: {error.strerror or error}"
            raise recipe.error("model.weights", reason) from None
        except ValueError as error:
            raise recipe.error("model.weights", str(error)) from None
    repository = next(repositories(recipe))
    try:
        return resolve_folder(recipe.model.weights, recipe.found.commits.get("model", recipe.model.revision))
    except HubError as error:
        raise repository.error(recipe, error) from None
    except (OSError, ValueError) as error:
        raise recipe.error("model.weights", " ".join(str(error).split())) from None


def hub_origin(recipe: Recipe, section: str) -> str | None:
    """``ID at COMMIT`` of a section's hub repository; None if it has none."""
    commit = recipe.found.commits.get(section)
    return commit and f"{recipe.model.weights if section == 'model' else recipe.data.dataset} at {commit}"
