"""Send the gate's verdict from the launcher to the first training process.

:mod:`toolkit.finetune.launch` runs the gate before it starts the processes, so that none of them waits. The verdict
comes through a pipe. It is valid only for the same recipe, data, first weights, versions and report: everything is
hashed again. Otherwise the gate runs again.

A trial of a search reuses the verdict of an earlier trial that differs only in rates or length.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.files.digest import digest_array, digest_parts, file_sha256
from toolkit.files.whole import replace_when_written
from toolkit.machine import runtime
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT, read_starts
from toolkit.training.ranks import SUPERVISOR_PIPE_VARIABLE

if TYPE_CHECKING:
    from toolkit.finetune.assembly import AssembledRun


def make_handover(
    recipe: Recipe, job: AssembledRun, folder: Path, device: str, processes: int, verdict: str | None
) -> dict[str, Any]:
    """Return the launcher's message to the first process.

    Args:
        recipe: recipe of the run.
        job: parts of the run.
        folder: run folder.
        device: device of the run.
        processes: number of processes in the gate's request.
        verdict: verdict of the gate; None if it was skipped.
    """
    gate_digest = None if verdict is None else _gate_digest(recipe, job, folder, device, processes)
    backward = recipe.model.backward  # the choice, if the recipe sets `auto`
    findings = {"commits": dict(recipe.findings.commits), "continues": dict(recipe.findings.continues)}
    return {**findings, "backward": backward, "verdict": verdict, "compared": gate_digest}


def read_handover() -> dict[str, Any] | None:
    """Return the launcher's message to this process; None without one."""
    number = os.environ.get(SUPERVISOR_PIPE_VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        with os.fdopen(int(number), encoding="utf-8") as pipe:
            handover = json.loads(pipe.read())
        return {key: handover[key] for key in ("commits", "continues", "backward", "verdict", "compared")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def verified_verdict(
    handover: Mapping[str, Any] | None, recipe: Recipe, job: AssembledRun, folder: Path, device: str, processes: int
) -> str | None:
    """Return the launcher's verdict if it is valid for this run; None otherwise.

    Args:
        handover: verdict and digest of the launcher; None if this process was not launched by another.
        recipe: recipe of the run.
        job: data, tokenizer and model of the run.
        folder: run folder.
        device: device of the run.
        processes: number of processes of the run.
    """
    if handover is None or handover["verdict"] is None:
        return None
    try:
        has_passed = json.loads((folder / REPORT / "parity.json").read_text(encoding="utf-8"))["passed"]
        if has_passed is True and handover["compared"] == _gate_digest(recipe, job, folder, device, processes):
            return str(handover["verdict"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def reuse_gate(gate_source: Path, folder: Path) -> str:
    """Use the gate of another trial of a search for this run: copy its constants, and return its verdict.

    Args:
        gate_source: run folder of the other trial.
        folder: folder of this run.
    """
    from toolkit.parity import CONSTANTS

    if (constants := gate_source / REPORT / CONSTANTS).is_file():
        (folder / REPORT).mkdir(exist_ok=True)
        with replace_when_written(folder / REPORT / CONSTANTS) as copy:
            shutil.copyfile(constants, copy)
    return f"of {gate_source.name}: {next(start['passed'] for start in read_starts(gate_source) if start['passed'])}"


def _gate_digest(recipe: Recipe, job: AssembledRun, folder: Path, device: str, processes: int) -> str:
    """Return a digest of the gate's inputs and files.

    Args:
        recipe: recipe of the run.
        job: data, tokenizer and model of the run.
        folder: run folder.
        device: device of the run.
        processes: number of processes of the run.
    """
    weights = {name: digest_array(value) for name, value in job.first_weights.items()}
    report_digests = {
        path.name: file_sha256(path) for path in sorted((folder / REPORT).iterdir()) if path.name in _gate_files()
    }
    content = [
        recipe.to_yaml(),
        job.identity,
        job.config.to_hf(),
        weights,
        runtime.installed_versions(),
        device,
        processes,
        report_digests,
    ]
    return digest_parts(json.dumps(content, sort_keys=True, default=str))


def _gate_files() -> tuple[str, ...]:
    """Return the names of the files that the parity gate leaves in a run folder."""
    from toolkit.parity import CONSTANTS

    return ("parity.json", CONSTANTS)
