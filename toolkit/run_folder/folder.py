"""A run folder: its owner, its content, and its lock, which admits a single process at a time."""

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
    GATE_FILE_PATTERNS,
    LEDGER,
    claim_folder,
    find_unfinished_prefix,
    is_gate_file,
    is_run_folder,
    release_claim,
    remove_from_run,
    remove_leftovers,
)
from toolkit.files.whole import write_text
from toolkit.machine.disk import find_write_obstacle
from toolkit.recipe import yaml_source
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.read import reading

#: Name of the lock file. The system releases the lock when the process that holds it ends for any reason.
LOCK = ".lock"
#: Name of the folder with the gate's report, which may exist before the run starts.
REPORT = ownership.REPORT_FOLDER
#: Name of the folder with the output of all processes except the first; removed when the run has finished.
LOGS = "logs"
#: Name of the folder with the run's checkpoints.
CHECKPOINTS = "checkpoints"
#: Name of the file in the report's folder that records how each start of the run passed or skipped the gate.
STARTS = "starts.json"
#: Seconds to wait for a process that adds metrics to a finished run.
PATIENCE_SECONDS = 60.0


@contextlib.contextmanager
def lock_run_folder(recipe: Recipe) -> Iterator[Path]:
    """Create and lock the run folder of a recipe in the ``with`` block, so that other processes do not use it.

    A folder that is not a run folder is rejected before any file in it changes. In a run folder, unfinished files of
    killed processes are removed. If the block writes no files, a new folder is removed and an existing folder is
    restored.

    Raises:
        UserError: another process uses the folder, or this recipe cannot resume from its content.
    """
    folder = recipe.output_dir
    if folder.is_dir() and not is_run_folder(folder):
        _check_content(recipe, folder)
    if obstacle := find_write_obstacle(folder):
        raise recipe.error("train.output_dir", f"{folder}: {obstacle}; name another folder")
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    paths_before = _relative_paths(folder)
    has_claimed = claim_folder(folder)
    try:
        with _holding_lock(folder, patience=0):
            has_claimed = claim_folder(folder) or has_claimed  # another process may have ended and removed its claim
            try:
                _remove_leftovers(folder)
                _check_content(recipe, folder)
                yield folder
            finally:
                if has_claimed and _relative_paths(folder) - {LEDGER, LOCK} == paths_before:
                    release_claim(folder)
    except Timeout:
        message = f"another process is using {folder}; wait until it has ended, or set another folder"
        raise recipe.error("train.output_dir", message) from None
    finally:
        remove_empty_folders(new_folders)


@contextlib.contextmanager
def amending(folder: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Lock an existing run folder in the ``with`` block, so that other processes do not use it.

    Args:
        folder: folder of a run.
        patience: seconds to wait for another process that uses the folder.

    Raises:
        UserError: another process still uses the folder.
    """
    try:
        with _holding_lock(folder, patience):
            _remove_leftovers(folder)
            yield
    except Timeout:
        raise UserError(f"{folder}: another process is using it; wait until that has ended") from None


@contextlib.contextmanager
def _holding_lock(folder: Path, patience: float) -> Iterator[None]:
    """Hold the lock of a run folder in the ``with`` block, and remove the lock file at its end.

    Args:
        folder: run folder.
        patience: time to wait for another process, in seconds.
    """
    lock = FileLock(folder / LOCK)
    with lock.acquire(timeout=patience):
        try:
            yield
        finally:  # a process that opened the file in the meantime sees that it is gone, and creates another file
            (folder / LOCK).unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of killed processes from a folder that a run has claimed; leave other folders alone."""
    if not is_run_folder(folder):
        return
    remove_leftovers(folder, (REPORT, CHECKPOINTS))
    for name in GATE_FILE_PATTERNS:
        remove_from_run(folder, folder / REPORT / f"{name}.partial")
    if (folder / "metrics.json").exists():  # the run finished, but was killed before it removed its checkpoints
        Checkpoints(folder / CHECKPOINTS).remove()


def _relative_paths(folder: Path) -> set[str]:
    """Return the relative paths of the files and folders in a folder and its direct subfolders."""
    return {str(path.relative_to(folder)) for pattern in ("*", "*/*") for path in folder.glob(pattern)}


def _check_content(recipe: Recipe, folder: Path) -> None:
    """Check that the folder is free, or holds an interrupted run of the same recipe.

    Raises:
        UserError: the folder holds other files, a finished run, or a run of another recipe.
    """
    remedy = f"set train.output_dir to another folder, or remove {folder}"
    continue_hint = f"add --continue {shlex.quote(str(folder))}"
    new_hint = f"add --new, which takes {_numbered_folder(folder, 2)} or the next that is free, {remedy}"
    try:
        foreign_names = sorted(path.name for path in folder.iterdir() if not _is_left_by_gate(path))
    except OSError as error:
        raise recipe.error("train.output_dir", f"{folder}: {os.strerror(error.errno or 0)}; {remedy}") from None
    if not foreign_names:
        return
    if not (folder / "recipe.yaml").is_file():
        raise recipe.error("train.output_dir", f"{folder} is not empty and holds no run; {remedy}")
    if (folder / "metrics.json").exists():
        raise recipe.error(
            "train.output_dir",
            f"{folder} holds a finished run (toolkit evaluate {folder}); to train it further, {continue_hint}; to "
            f"train again, {new_hint}",
        )
    with reading(folder / "recipe.yaml", remedy):
        path = folder / "recipe.yaml"
        differences = differing_keys(path.read_text(encoding="utf-8"), recipe.to_yaml(), str(path))
    for subfolder in (folder / REPORT, folder / CHECKPOINTS):
        if os.path.lexists(subfolder) and (subfolder.is_symlink() or not subfolder.is_dir()):
            raise recipe.error("train.output_dir", f"{subfolder} is a link or no folder; move it away")
    if recipe.model.backward == "auto":  # the saved recipe has the choice of :mod:`toolkit.finetune.backward`
        differences = [key for key in differences if not key.startswith("model.backward: ")]
    if differences:
        raise recipe.error(
            "train.output_dir",
            f"{folder} holds an unfinished run of another recipe ({'; '.join(differences[:3])}); resume it: "
            f"toolkit finetune {shlex.quote(str(folder / 'recipe.yaml'))}; or give the folder to toolkit finish, which "
            "ends it, or to --continue, which begins with its weights; to start over, set another train.output_dir",
        )


def resume_hint(folder: Path) -> str:
    """Return a hint with the commands that resume or finish an interrupted run."""
    recipe, run = (shlex.quote(str(path)) for path in (folder / "recipe.yaml", folder))
    return f"resume it: toolkit finetune {recipe}, or end it with its best weights: toolkit finish {run}"


def _is_left_by_gate(path: Path) -> bool:
    """Return whether a path in a run folder was written by a run that stopped at the gate.

    Earlier versions had no ledger. Their report is recognized by its content.
    """
    if is_run_folder(path.parent):
        return path.name in (LEDGER, LOCK, REPORT, LOGS) or path.name.startswith(find_unfinished_prefix(path.parent))
    return path.name == REPORT and path.is_dir() and all(map(is_gate_file, path.iterdir()))


def in_next_folder(recipe: Recipe) -> Recipe:
    """Return the recipe with the first usable run folder: its own, ``runs/x-2``, ``runs/x-3`` and so on.

    A folder is usable if it is free, or if it holds an interrupted run of the same recipe, which is then resumed.
    """
    for number in itertools.count(1):
        candidate = recipe.with_values({"train.output_dir": str(_numbered_folder(recipe.output_dir, number))})
        folder = candidate.output_dir
        if not os.path.lexists(folder):
            return candidate
        with contextlib.suppress(UserError, OSError):  # another run or other files occupy the folder
            _check_content(candidate, folder)
            return candidate
    raise AssertionError("a folder for every number")


def _numbered_folder(folder: Path, number: int) -> Path:
    """Return the folder for number 1, and otherwise the folder with ``-NUMBER`` appended to its name."""
    if number == 1:
        return folder
    absolute_folder = folder if folder.name not in ("", "..") else Path(os.path.abspath(folder))
    return absolute_folder.with_name(f"{absolute_folder.name}-{number}")


def differing_keys(saved_recipe: str, current_recipe: str, name: str = "the recipe") -> list[str]:
    """Return the differences between two recipes, such as `train.batch_size: 4 there, 8 here`.

    Args:
        saved_recipe: YAML of the saved recipe.
        current_recipe: YAML of the current recipe.
        name: name of the saved recipe in errors, such as its file.
    """
    saved_values, current_values = (
        flat(yaml_source.parse_mapping(text, name)) for text in (saved_recipe, current_recipe)
    )
    keys = dict.fromkeys([*current_values, *saved_values])
    return [
        f"{key}: {saved_values.get(key)} there, {current_values.get(key)} here"
        for key in keys
        if saved_values.get(key) != current_values.get(key)
    ]


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value for the leaves of nested mappings: ``{"a": {"b": 1}}`` -> ``{"a.b": 1}``."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    return {
        path: leaf for key, child in values.items() for path, leaf in flat(child, f"{prefix}.{key}".strip(".")).items()
    }


# -- the verdict of the gate at each start of the run ---------------------------------------------------------------


def record_start(folder: Path, after_step: int, verdict: str | None, skip_reason: str | None) -> None:
    """Add a start of the run to :data:`STARTS`, and remove earlier starts whose steps are all repeated.

    Args:
        folder: folder of the run.
        after_step: step of the checkpoint where the run resumes, 0 for a new run.
        verdict: verdict of the gate if it passed; None if it was skipped.
        skip_reason: reason for skipping the gate; None if it was not skipped.
    """
    earlier_starts = [start for start in read_starts(folder) if start["after_step"] < after_step]
    starts = [*earlier_starts, {"after_step": after_step, "passed": verdict, "skipped": skip_reason}]
    (folder / REPORT).mkdir(exist_ok=True)
    write_text(folder / REPORT / STARTS, json.dumps(starts, indent=1) + "\n")


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return the starts of a run in order, each with ``after_step``, and with a text for ``passed`` or ``skipped``."""
    path = folder / REPORT / STARTS
    if not path.exists():
        return []
    try:
        starts = json.loads(plain_file(path).read_text(encoding="utf-8"))
        return [{key: start[key] for key in ("after_step", "passed", "skipped")} for start in starts]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return [{"after_step": 0, "passed": None, "skipped": f"unknown, since {path} was damaged"}]


def steps_of(starts: Sequence[Mapping[str, Any]], start: Mapping[str, Any]) -> str:
    """Return a description of the steps between one start of the run and the next, such as ``steps 1 to 40``."""
    first = start["after_step"] + 1
    later_steps = [other_start["after_step"] for other_start in starts if other_start["after_step"] >= first]
    if not later_steps:
        return "training" if first == 1 else f"step {first} and all after it"
    return f"steps {first} to {later_steps[0]}"
