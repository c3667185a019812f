"""The reference's part in ``parity bitwise``: R64, for its draws and discrete choices, then R32, whose every bit
counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import ReferenceResult
from toolkit.parity.reference.points import ignore
from toolkit.parity.reference.step import make_step


def run(job: Job, folder: Path) -> ReferenceResult:
    """Write draws, constants and R32 (every output, stream, score and gradient, and the loss) into the job folder."""
    step = make_step(job, folder)
    step.run("float64", ignore)
    own: dict[str, np.ndarray] = {}
    step.run("float32", lambda name, value: own.update({name: value.copy()}))
    place = folder / "reference"
    step.write_draws(place)
    files.write_tensors(place / "constants.safetensors", step.constants())
    files.write_tensors(place / "float32.safetensors", own)
    files.write_json(place / "order.json", list(own))  # its existence starts the Paddle worker
    return ReferenceResult()
