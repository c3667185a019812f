"""What the port's loader reads from a checkpoint, against what the reference's own ``from_pretrained`` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models import hub
from models.families import part
from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile


def loading_problems(job: Job, folder: Path) -> dict[str, str]:
    """Parameter -> in which way the port reads it otherwise, value for value; nothing where no checkpoint is read."""
    if job.checkpoint is None:
        return {}
    config = part(job.model, "schema").resolve(job.config)
    ours = part(job.model, "weights").select(hub.read_tensors(Path(job.checkpoint)), config, job.head)
    theirs = TensorFile(folder / "reference" / "checkpoint.safetensors")
    found = {name: _problem(ours.get(name), theirs[name]) for name in theirs}
    found |= {name: "the port reads it, the reference does not" for name in ours.keys() - theirs.keys()}
    loader = f"from the checkpoint (models/{job.model}/weights.py)"
    return {name: f"{loader}: {problem}" for name, problem in found.items() if problem}


def _problem(ours: np.ndarray | None, theirs: np.ndarray) -> str:
    if ours is None:
        return "the reference reads it, the port does not"
    value = np.asarray(ours, np.float32)
    if value.shape != theirs.shape:
        return f"the port reads shape {list(value.shape)}, the reference {list(theirs.shape)}"
    differing = int((value != theirs).sum())
    return f"{differing} of {theirs.size} values are not those that the reference reads" if differing else ""
