"""What the port's loader reads from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from models.families import part
from models.files import hub
from toolkit.parity.job.job import Job


def loaded(job: Job) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every parameter that the port reads from the job's checkpoint, if it has one."""
    if job.checkpoint is None:
        return
    config = part(job.model, "schema").resolve(job.checkpoint_config or job.config)
    yield from part(job.model, "weights").select(hub.read_tensors(Path(job.checkpoint)), config, job.head).items()
