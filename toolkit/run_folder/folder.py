"""A run folder: its owner, its content, and its lock, so that one process at a time uses it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from models.files.plain import plain_file
from toolkit.errors import UserError
from toolkit.files import ownership
from toolkit.files.lossless import remove_empty_folders
from toolkit.files.ownership import (
    LEDGER,
    OF_A_GATE,
    claim,
    give_up_claim,
    is_of_a_gate,
    is_run_folder,
    prefix_in,
    remove_from_run,
    remove_leftovers,
)
from toolkit.files.whole import write_text
from toolkit.machine.disk import check_writable
from toolkit.recipe import yaml_source
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.read import reading

#: Locked by the process that works in the folder. The system unlocks it when that ends, however it ends.
LOCK = ".lock"
#: The report of the gate, which may be there before a run has begun.
REPORT = ownership.REPORT
#: Output of all processes but the first that :mod:`toolkit.finetune.launch` started; gone when the run has finished.
LOGS = "logs"
#: The folder of the run's checkpoints.
CHECKPOINTS = "checkpoints"
#: In the report's folder: how each start passed or skipped the gate.
STARTS = "starts.json"
#: Seconds to wait for a process that adds a number to a finished run.
PATIENCE = 60.0


@contextlib.contextmanager
def occupied(recipe: Recipe) -> Iterator[Path]:
    """Lock the recipe's run folder, made if need be: no other process of the toolkit works in it meanwhile.

    A folder that is not a run's is refused before anything in it is touched. In a run's, what a killed process left
    half-written is removed. A folder in which nothing was written is left as it was, or removed.

    Raises:
        UserError: another process works in it, or it holds something that this recipe cannot go on from.
    """
    folder = recipe.output_dir
    if folder.is_dir() and not is_run_folder(folder):
        _check_content(recipe, folder)
    if refused := check_writable(folder):
        raise recipe.error("train.output_dir", f"{folder}: {refused}; name another folder")
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    before = _names(folder)
    claimed = claim(folder)
    try:
        with _locked(folder, patience=0):
            claimed = claim(folder) or claimed  # another process may have left, and taken its claim with it
            try:
                _tidy(folder)
                _check_content(recipe, folder)
                yield folder
            finally:
                if claimed and _names(folder) - {LEDGER, LOCK} == before:
                    give_up_claim(folder)
    except Timeout:
        message = f"another process is using {folder}; wait until it has ended, or set another folder"
        raise recipe.error("train.output_dir", message) from None
    finally:
        remove_empty_folders(made)


@contextlib.contextmanager
def amending(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Keep other processes from working in a run folder meanwhile; wait ``patience`` seconds for one that does. Raises
    UserError if it still does."""
    try:
        with _locked(folder, patience):
            _tidy(folder)
            yield
    except Timeout:
        raise UserError(f"{folder}: another process is using it; wait until that has ended") from None


@contextlib.contextmanager
def _locked(folder: Path, patience: float) -> Iterator[None]:
    lock = FileLock(folder / LOCK)
    with lock.acquire(timeout=patience):
        try:
            yield
        finally:  # whoever has opened it meanwhile, and gets the lock next, sees that it has gone, and makes another
            (folder / LOCK).unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """Remove what killed processes left in a folder that a run has claimed; leave other folders alone."""
    if not is_run_folder(folder):
        return
    remove_leftovers(folder, (REPORT, CHECKPOINTS))
    for name in OF_A_GATE:
        remove_from_run(folder, folder / REPORT / f"{name}.partial")
    if (folder / "metrics.json").exists():  # a kill may have come between the last number and this
        Checkpoints(folder / CHECKPOINTS).remove()


def _names(folder: Path) -> set[str]:
    """What is in a folder and in the folders in it."""
    return {str(path.relative_to(folder)) for pattern in ("*", "*/*") for path in folder.glob(pattern)}


def _check_content(recipe: Recipe, folder: Path) -> None:
    """Check that the folder is free, or holds an interrupted run of the same recipe."""
    others = f"set train.output_dir to another folder, or remove {folder}"
    further = f"add --continue {shlex.quote(str(folder))}"
    again = f"add --new, which takes {_numbered(folder, 2)} or the next that is free, {others}"
    try:
        odd = sorted(path.name for path in folder.iterdir() if not _begins_a_run(path))
    except OSError as error:
        raise recipe.error("train.output_dir", f"{folder}: {os.strerror(error.errno or 0)}; {others}") from None
    if not odd:
        return
    if not (folder / "recipe.yaml").is_file():
        raise recipe.error("train.output_dir", f"{folder} is not empty and holds no run; {others}")
    if (folder / "metrics.json").exists():
        raise recipe.error(
            "train.output_dir",
            f"{folder} holds a finished run (toolkit evaluate {folder}); to train it further, {further}; to train "
            f"again, {again}",
        )
    with reading(folder / "recipe.yaml", others):
        path = folder / "recipe.yaml"
        differing = differing_keys(path.read_text(encoding="utf-8"), recipe.to_yaml(), str(path))
    for place in (folder / REPORT, folder / CHECKPOINTS):
        if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
            raise recipe.error("train.output_dir", f"{place} is a link or no folder; move it away")
    if recipe.model.backward == "auto":  # there it is settled (:mod:`toolkit.finetune.backward`)
        differing = [key for key in differing if not key.startswith("model.backward: ")]
    if differing:
        raise recipe.error(
            "train.output_dir",
            f"{folder} holds an unfinished run of another recipe ({'; '.join(differing[:3])}); resume it: "
            f"toolkit finetune {shlex.quote(str(folder / 'recipe.yaml'))}; or give the folder to toolkit finish, which "
            "ends it, or to --continue, which begins with its weights; to start over, set another train.output_dir",
        )


def goes_on(folder: Path) -> str:
    """The commands for an interrupted run."""
    recipe, run = (shlex.quote(str(path)) for path in (folder / "recipe.yaml", folder))
    return f"resume it: toolkit finetune {recipe}, or end it with its best weights: toolkit finish {run}"


def _begins_a_run(path: Path) -> bool:
    """Whether something in a folder was left by a run that did not get past the gate. An earlier version had no
    ledger: its report is known by its content."""
    if is_run_folder(path.parent):
        return path.name in (LEDGER, LOCK, REPORT, LOGS) or path.name.startswith(prefix_in(path.parent))
    return path.name == REPORT and path.is_dir() and all(map(is_of_a_gate, path.iterdir()))


def in_next_folder(recipe: Recipe) -> Recipe:
    """Return the recipe with the first usable folder of its run folder and those beside it (``runs/x-2``, ...): one
    that is free, or holds an interrupted run of this very recipe, which then goes on."""
    for number in itertools.count(1):
        there = recipe.with_values({"train.output_dir": str(_numbered(recipe.output_dir, number))})
        folder = there.output_dir
        if not os.path.lexists(folder):
            return there
        with contextlib.suppress(UserError, OSError):  # it is taken: by another run, by something else
            _check_content(there, folder)
            return there
    raise AssertionError("a folder for every number")


def _numbered(folder: Path, number: int) -> Path:
    """The folder itself, or its ``-NUMBER``."""
    if number == 1:
        return folder
    named = folder if folder.name not in ("", "..") else Path(os.path.abspath(folder))
    return named.with_name(f"{named.name}-{number}")


def differing_keys(there: str, here: str, name: str = "the recipe") -> list[str]:
    """Differences of two recipes: `train.batch_size: 4 there, 8 here`.

    Args:
        name: what an error calls the text of the saved recipe, such as its file.
    """
    old, new = (flat(yaml_source.parse_mapping(text, name)) for text in (there, here))
    keys = dict.fromkeys([*new, *old])
    return [f"{key}: {old.get(key)} there, {new.get(key)} here" for key in keys if old.get(key) != new.get(key)]


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by dotted key."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    return {
        path: leaf for key, item in values.items() for path, leaf in flat(item, f"{prefix}.{key}".strip(".")).items()
    }


# -- how the run came past the gate ---------------------------------------------------------------------------------


def record_start(folder: Path, after_step: int, verdict: str | None, skipped: str | None) -> None:
    """Add a start of the run to :data:`STARTS`; one of whose steps none were kept is no longer listed.

    Args:
        after_step: the step of the checkpoint that it goes on from, 0 for a new run.
        verdict: what the gate said when it passed; None where it was skipped.
    """
    earlier = [start for start in read_starts(folder) if start["after_step"] < after_step]
    starts = [*earlier, {"after_step": after_step, "passed": verdict, "skipped": skipped}]
    (folder / REPORT).mkdir(exist_ok=True)
    write_text(folder / REPORT / STARTS, json.dumps(starts, indent=1) + "\n")


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return the starts of a run in order: ``after_step``, and ``passed`` or ``skipped`` with words."""
    path = folder / REPORT / STARTS
    if not path.exists():
        return []
    try:
        starts = json.loads(plain_file(path).read_text(encoding="utf-8"))
        return [{key: start[key] for key in ("after_step", "passed", "skipped")} for start in starts]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return [{"after_step": 0, "passed": None, "skipped": f"unknown, since {path} was damaged"}]


def steps_of(starts: Sequence[Mapping[str, Any]], start: Mapping[str, Any]) -> str:
    """Name the steps trained from one start of the run to the next."""
    first = start["after_step"] + 1
    later = [other["after_step"] for other in starts if other["after_step"] >= first]
    if not later:
        return "training" if first == 1 else f"step {first} and all after it"
    return f"steps {first} to {later[0]}"
