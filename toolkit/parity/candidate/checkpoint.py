"""What the port's loader reads from a checkpoint, against what the reference's own ``from_pretrained`` reads; and the
weights of the job, against the part of it that they are to be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from models import hub
from models.families import part
from toolkit.parity.job.files import CHECKPOINT, POSITIONS
from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile


def loading_problems(job: Job, folder: Path) -> dict[str, str]:
    """Parameter -> in which way the port reads it otherwise, value for value; nothing where no checkpoint is read."""
    if job.checkpoint is None:
        return {}
    config = part(job.model, "schema").resolve(job.checkpoint_config or job.config)
    ours = part(job.model, "weights").select(hub.read_tensors(Path(job.checkpoint)), config, job.head)
    theirs = TensorFile(folder / "reference" / CHECKPOINT)
    found = {name: _problem(ours.get(name), theirs[name]) for name in theirs}
    found |= {name: "the port reads it, the reference does not" for name in ours.keys() - theirs.keys()}
    loader = f"from the checkpoint (models/{job.model}/weights.py)"
    problems = {name: f"{loader}: {problem}" for name, problem in found.items() if problem}
    return {**problems, **_cut_problems(job, folder, theirs)}


def _cut_problems(job: Job, folder: Path, theirs: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Parameter -> in which way the weights that both sides were given are not the checkpoint's, of a model with fewer
    positions: there, what the reference's evaluation reads of its position table."""
    if job.checkpoint_config is None:
        return {}
    reached, given = TensorFile(folder / "reference" / POSITIONS), TensorFile(folder / "weights.safetensors")
    problems: dict[str, str] = {}
    for name in theirs.keys() & given.keys():
        expected = reached[name] if name in reached else theirs[name]
        if expected.size > 1 and np.ptp(expected) == 0:
            continue  # the gate randomizes constants
        if problem := _problem(given[name], expected):
            problems[name] = f"cut to fewer positions (models/{job.model}/positions.py): {problem}"
    return problems


def _problem(ours: np.ndarray | None, theirs: np.ndarray) -> str:
    if ours is None:
        return "the reference reads it, the port does not"
    value = np.asarray(ours, np.float32)
    if value.shape != theirs.shape:
        return f"the port reads shape {list(value.shape)}, the reference {list(theirs.shape)}"
    differing = int((value != theirs).sum())
    return f"{differing} of {theirs.size} values are not those that the reference reads" if differing else ""
