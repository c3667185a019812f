"""The batches of a pair's steps. The ``batch`` function of one side's file creates them for both sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.parity.exchange import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import batch_of

#: Separator between the number of a training step and a tensor's name in `batches.safetensors`: `2|input_ids`.
SEPARATOR = "|"


def write_batches(source: Any, job: Job, folder: Path) -> None:
    """Create the batches of a pair, and write them into the job folder.

    `batch.safetensors` has the batch that the gate compares, which is drawn with the job's seed. If the sides are also
    trained independently, `batches.safetensors` has one batch per training step, with the seeds seed, seed + 1, and so
    on. Its tensors have names such as `2|input_ids`.

    Args:
        source: loaded module of the file that has the ``batch`` function.
        job: job of the pair.
        folder: job folder.
    """
    assert job.pair is not None
    batches = [batch_of(source, dict(job.config), job.seed + index) for index in range(max(1, job.pair.steps))]
    if job.pair.steps:
        tensors = {
            f"{n}{SEPARATOR}{name}": value for n, batch in enumerate(batches, 1) for name, value in batch.items()
        }
        files.write_tensors(folder / "batches.safetensors", tensors)
    files.write_tensors(folder / "batch.safetensors", batches[0])


def batch_of_step(batches: Mapping[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """Return one training step's batch, picked from the batches of all steps.

    Args:
        batches: tensors of `batches.safetensors`, named `STEP|NAME`.
        step: number of the step, counted from 1.

    Returns:
        Arrays of the batch by NAME, such as `input_ids`.
    """
    prefix = f"{step}{SEPARATOR}"
    return {name.removeprefix(prefix): value for name, value in batches.items() if name.startswith(prefix)}
