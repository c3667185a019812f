"""Identify a run by the content of its data, tokenizer and starting checkpoint, in addition to its recipe.

A recipe names files, and files change. A run that resumes with other rows, labels or tokens would be neither the old
run nor a new run. So the SHA-256s are written into the run folder at the start, and compared when the run is resumed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.files.plain import read_object
from toolkit.errors import UserError
from toolkit.files.digest import digest_rows, file_sha256
from toolkit.files.whole import write_text
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import IDENTITY
from toolkit.run_folder.read import read_json

FILE = IDENTITY
#: Number of a digest's characters that a message shows.
NUM_SHOWN_CHARACTERS = 12


def identity_of(recipe: Recipe, splits: Mapping[str, Any], tokenizer: Any, checkpoint: Path | None) -> dict[str, Any]:
    """Return the SHA-256s of a run's data, tokenizer and first weights.

    Args:
        recipe: recipe of the run.
        splits: rows of each split.
        tokenizer: tokenizer of the run.
        checkpoint: folder of the first weights; None for randomly initialized weights.

    Returns:
        ``splits`` (digest of the rows, by name), ``files`` (digests of the recipe's local data files), ``tokenizer``,
        ``checkpoint`` (digests of the files that are read), and ``commits`` (commits of the sections that use the hub).

    Raises:
        UserError: a file was removed.
    """
    from models.files.hub import weight_files

    checkpoint_files = [] if checkpoint is None else [checkpoint / "config.json", *weight_files(checkpoint)]
    try:
        return {
            "splits": {name: digest_rows(rows) for name, rows in splits.items()},
            "files": {str(path): file_sha256(path) for path in _data_files(recipe)},
            "tokenizer": tokenizer.fingerprint(),
            "checkpoint": {path.name: file_sha256(path) for path in checkpoint_files},
            "commits": dict(recipe.findings.commits),
        }
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; it was there a moment ago") from None


def write_identity(recipe: Recipe, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Write the identity of a run into its folder; return the record of the run that it continues.

    A resumed run keeps that record.
    """
    continues: Any = recipe.findings.continues
    if not continues:
        with contextlib.suppress(OSError, ValueError):
            continues = read_object(folder / FILE).get("continues")
    content = {**identity, **({"continues": continues} if continues else {})}
    write_text(folder / FILE, json.dumps(content, indent=1) + "\n")
    return dict(continues or {})


def check_identity(recipe: Recipe, folder: Path, current: Mapping[str, Any]) -> str | None:
    """Compare the identity with the saved identity of an interrupted run; a run without a checkpoint starts again.

    Returns:
        A note if the run has no saved identity; None otherwise.

    Raises:
        UserError: something has changed; the error lists the changes and remedies.
    """
    if not any((folder / "checkpoints").glob("step-*")):
        return None
    try:
        saved_identity = read_object(folder / FILE)
    except FileNotFoundError:
        return f"{folder} has no {FILE}, so later changes of its data, tokenizer or first weights go undetected"
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder / FILE}: cannot be read ({error}), so what the run was begun with is not known; "
            "to resume nevertheless, remove that file"
        ) from None
    changes = list(_changes(recipe, saved_identity, current))
    if changes:
        raise recipe.error(
            "train.output_dir",
            f"{folder} holds an unfinished run, and since it began {'; '.join(changes)}; "
            "to finish it, put back what it was begun with; "
            f"to start over, set train.output_dir to another folder, or remove {folder}",
        )
    return None


def describe_changed_split(folder: Path, split_name: str, rows: Any) -> str | None:
    """Describe how a split differs from the same split of a finished run.

    Returns:
        The description; None if the rows are the same, or if the run did not record its data.

    Raises:
        UserError: the run's record of its data is damaged.
    """
    if not (folder / FILE).exists():
        return None
    recorded_splits = read_json(folder / FILE, "remove it to measure without this comparison").get("splits")
    then = recorded_splits.get(split_name) if isinstance(recorded_splits, dict) else None
    now = digest_rows(rows)
    if then in (None, now):
        return None
    digests = f"SHA-256 {str(then)[:NUM_SHOWN_CHARACTERS]} then, {now[:NUM_SHOWN_CHARACTERS]} now"
    return f"the {split_name} split is not the one of the run ({digests})"


def _data_files(recipe: Recipe) -> Iterator[Path]:
    """Return the absolute paths of the local data files, since a resumed recipe may be in another folder."""
    return (path.absolute() for name in recipe.data.paths for path in recipe.resolve_all(name))


def _changes(recipe: Recipe, saved_identity: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences as sentences. A file whose rows are the same has not changed.

    Args:
        recipe: recipe of the run.
        saved_identity: digests of data and weights when the run started.
        current: digests of data and weights now.
    """
    splits = _differing(saved_identity, current, "splits")
    if splits:
        files = _differing(saved_identity, current, "files")
        origin = f" (changed: {', '.join(files)})" if files else f" (of {recipe.data.dataset})"
        yield f"the rows of {', '.join(splits)} have changed{origin}"
    # A tokenizer that is trained on these rows changes with them.
    if saved_identity.get("tokenizer") != current["tokenizer"] and not (splits and recipe.tokenizer.vocab_size):
        yield f"the tokenizer has changed ({recipe.tokenizer.path or recipe.model.weights or recipe.tokenizer.kind})"
    if files := _differing(saved_identity, current, "checkpoint"):
        yield f"{', '.join(files)} of the starting checkpoint {recipe.model.weights} changed"


def _differing(saved_identity: Mapping[str, Any], current: Mapping[str, Any], key: str) -> list[str]:
    """Return the names under a key whose digests differ.

    Args:
        saved_identity: digests of data and weights when the run started.
        current: digests of data and weights now.
        key: key of the digests, such as the files.
    """
    old, new = saved_identity.get(key), current[key]
    old = old if isinstance(old, dict) else {}
    return [name for name in {**new, **old} if old.get(name) != new.get(name)]
