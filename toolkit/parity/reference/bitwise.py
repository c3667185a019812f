"""The reference's runs for ``parity bitwise``: R64 for the draws and discrete choices, then R32 for the comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import ReferenceResult
from toolkit.parity.job.job import Job
from toolkit.parity.reference.points import keep_nothing
from toolkit.parity.reference.step import make_step


def run(job: Job, folder: Path) -> ReferenceResult:
    """Write the draws, the constants and R32's tensors into the job folder, and return an empty result.

    R32's tensors are outputs, residual streams, scores, gradients and the loss.

    Args:
        job: job of ``parity bitwise``.
        folder: folder of the job.
    """
    step = make_step(job, folder)
    step.run("float64", keep_nothing)
    float32_tensors: dict[str, np.ndarray] = {}
    step.run("float32", lambda name, value: float32_tensors.update({name: value.copy()}))
    output_dir = folder / "reference"
    step.write_draws(output_dir)
    files.write_tensors(output_dir / "constants.safetensors", step.constants())
    files.write_tensors(output_dir / "float32.safetensors", float32_tensors)
    files.write_json(output_dir / "order.json", list(float32_tensors))  # the port's process waits for this file
    return ReferenceResult()
