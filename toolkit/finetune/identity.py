"""What identifies a run beside its recipe: content of its data, tokenizer and starting checkpoint.

A recipe names files, and files change. A run that goes on with other rows, labels or tokens than it was begun with
would be neither the old run nor a new one. So their SHA-256s are written into the run folder when it begins, and
compared when it is resumed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.files.plain import read_object
from toolkit.errors import UserError
from toolkit.files.digest import digest_of_rows
from toolkit.files.whole import sha256, write_text
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import IDENTITY
from toolkit.run_folder.read import read_json

FILE = IDENTITY
#: Number of a digest's characters that a message shows.
NUM_SHOWN_CHARACTERS = 12


def identity_of(recipe: Recipe, splits: Mapping[str, Any], tokenizer: Any, checkpoint: Path | None) -> dict[str, Any]:
    """Return the SHA-256s of a run's data, tokenizer and first weights.

    Args:
        checkpoint: the folder that the first weights are read from; None for new ones.

    Returns:
        ``splits`` (name -> of its rows), ``files`` (the recipe's local data files -> of each), ``tokenizer``,
        ``checkpoint`` (the files of it that are read -> of each), and ``commits`` (of the recipe's sections, those of
        what they take from the hub).

    Raises:
        UserError: a file has gone.
    """
    from models.files.hub import weight_files

    read = [] if checkpoint is None else [checkpoint / "config.json", *weight_files(checkpoint)]
    try:
        return {
            "splits": {name: digest_of_rows(rows) for name, rows in splits.items()},
            "files": {str(path): sha256(path) for path in _data_files(recipe)},
            "tokenizer": tokenizer.fingerprint(),
            "checkpoint": {path.name: sha256(path) for path in read},
            "commits": dict(recipe.found.commits),
        }
    except OSError as problem:
        raise UserError(f"{problem.filename}: {problem.strerror}; it was there a moment ago") from None


def write_identity(recipe: Recipe, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Write what a run is made of into its folder, and the run that it continues; a resumed run keeps the latter.
    Returns it."""
    continues: Any = recipe.found.continues
    if not continues:
        with contextlib.suppress(OSError, ValueError):
            continues = read_object(folder / FILE).get("continues")
    written = {**identity, **({"continues": continues} if continues else {})}
    write_text(folder / FILE, json.dumps(written, indent=1) + "\n")
    return dict(continues or {})


def check_identity(recipe: Recipe, folder: Path, here: Mapping[str, Any]) -> str | None:
    """Compare with what an interrupted run was begun with; a run without a checkpoint begins anew. Returns a note if
    the run's version did not write this file. Raises UserError if something has changed: what, and the ways out."""
    if not any((folder / "checkpoints").glob("step-*")):
        return None
    try:
        there = read_object(folder / FILE)
    except FileNotFoundError:
        return f"{folder} has no {FILE}, so later changes of its data, tokenizer or first weights go undetected"
    except (OSError, ValueError) as problem:
        raise UserError(
            f"{folder / FILE}: cannot be read ({problem}), so what the run was begun with is not known; "
            "to resume nevertheless, remove that file"
        ) from None
    changed = list(_changes(recipe, there, here))
    if changed:
        raise recipe.error(
            "train.output_dir",
            f"{folder} holds an unfinished run, and since it began {'; '.join(changed)}; "
            "to finish it, put back what it was begun with; "
            f"to start over, set train.output_dir to another folder, or remove {folder}",
        )
    return None


def describe_changed_split(folder: Path, split: str, rows: Any) -> str | None:
    """Describe how a split differs from the same split of a finished run.

    Returns:
        The description; None if the rows are the same, or if the run did not record its data.

    Raises:
        UserError: the run's record of its data is damaged.
    """
    if not (folder / FILE).exists():
        return None
    recorded_splits = read_json(folder / FILE, "remove it to measure without this comparison").get("splits")
    then = recorded_splits.get(split) if isinstance(recorded_splits, dict) else None
    now = digest_of_rows(rows)
    if then in (None, now):
        return None
    digests = f"SHA-256 {str(then)[:NUM_SHOWN_CHARACTERS]} then, {now[:NUM_SHOWN_CHARACTERS]} now"
    return f"the {split} split is not the one of the run ({digests})"


def _data_files(recipe: Recipe) -> Iterator[Path]:
    """The local files that the recipe's data section names; absolute, since a resumed recipe may stand elsewhere."""
    return (path.absolute() for name in recipe.data.paths for path in recipe.resolve_all(name))


def _changes(recipe: Recipe, there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences as sentences. A file whose rows are the same has not changed."""
    splits = _differing(there, here, "splits")
    if splits:
        files = _differing(there, here, "files")
        where = f" (changed: {', '.join(files)})" if files else f" (of {recipe.data.dataset})"
        yield f"the rows of {', '.join(splits)} have changed{where}"
    # A tokenizer that is trained on these rows changes with them.
    if there.get("tokenizer") != here["tokenizer"] and not (splits and recipe.tokenizer.vocab_size):
        yield f"the tokenizer has changed ({recipe.tokenizer.path or recipe.model.weights or recipe.tokenizer.kind})"
    if files := _differing(there, here, "checkpoint"):
        yield f"{', '.join(files)} of the starting checkpoint {recipe.model.weights} changed"


def _differing(there: Mapping[str, Any], here: Mapping[str, Any], key: str) -> list[str]:
    """The names under a key whose digests are not the same on both sides."""
    old, new = there.get(key), here[key]
    old = old if isinstance(old, dict) else {}
    return [name for name in {**new, **old} if old.get(name) != new.get(name)]
