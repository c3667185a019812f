"""Hands the gate's verdict from the launcher to the first training process.

:mod:`toolkit.finetune.launch` runs the gate before it starts the processes, so that none waits for it. The verdict
comes through a pipe. It is believed only for the same recipe, data, first weights and versions, and beside that gate's
report: everything is hashed again. Otherwise the gate runs once more.

A trial of a search takes the verdict of an earlier one that differs from it in rates or its length alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.files.digest import digest, digest_of_array
from toolkit.files.whole import appearing, sha256
from toolkit.machine import runtime
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT, read_starts
from toolkit.training.ranks import SUPERVISOR_PIPE_VARIABLE

if TYPE_CHECKING:
    from toolkit.finetune.assembly import Assembled


def to_hand_over(
    recipe: Recipe, job: Assembled, folder: Path, device: str, processes: int, verdict: str | None
) -> dict[str, Any]:
    """Return what to tell the first process.

    Args:
        processes: number told to the gate.
        verdict: of the gate; None where it was skipped.
    """
    compared = None if verdict is None else _digest(recipe, job, folder, device, processes)
    backward = recipe.model.backward  # settled, where the recipe says auto
    found = {"commits": dict(recipe.found.commits), "continues": dict(recipe.found.continues)}
    return {**found, "backward": backward, "verdict": verdict, "compared": compared}


def handed_over() -> dict[str, Any] | None:
    """Return the launcher's message to this process; None if there is none."""
    number = os.environ.get(SUPERVISOR_PIPE_VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        with os.fdopen(int(number), encoding="utf-8") as pipe:
            told = json.loads(pipe.read())
        return {key: told[key] for key in ("commits", "continues", "backward", "verdict", "compared")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def verdict_of(
    told: Mapping[str, Any] | None, recipe: Recipe, job: Assembled, folder: Path, device: str, processes: int
) -> str | None:
    """The verdict of a gate that has passed for this run; None where none has."""
    if told is None or told["verdict"] is None:
        return None
    try:
        passed = json.loads((folder / REPORT / "parity.json").read_text(encoding="utf-8"))["passed"]
        if passed is True and told["compared"] == _digest(recipe, job, folder, device, processes):
            return str(told["verdict"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def take_gate(like: Path, folder: Path) -> str:
    """Take the gate of another trial of a search, in the folder ``like``, for this run's: its constants and its
    verdict, which is returned."""
    from toolkit.parity import CONSTANTS

    if (constants := like / REPORT / CONSTANTS).is_file():
        (folder / REPORT).mkdir(exist_ok=True)
        with appearing(folder / REPORT / CONSTANTS) as copy:
            shutil.copyfile(constants, copy)
    return f"of {like.name}: {next(start['passed'] for start in read_starts(like) if start['passed'])}"


def _digest(recipe: Recipe, job: Assembled, folder: Path, device: str, processes: int) -> str:
    """Digest of all that the gate was given and wrote."""
    weights = {name: digest_of_array(value) for name, value in job.first_weights.items()}
    left = {path.name: sha256(path) for path in sorted((folder / REPORT).iterdir()) if path.name in _left()}
    what = [recipe.to_yaml(), job.identity, job.config.to_hf(), weights, runtime.versions(), device, processes, left]
    return digest(json.dumps(what, sort_keys=True, default=str))


def _left() -> tuple[str, ...]:
    from toolkit.parity import CONSTANTS

    return ("parity.json", CONSTANTS)
