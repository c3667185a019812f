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
OF_STEP = "|"


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
    batches = [batch_of(source, dict(job.config), job.seed + count) for count in range(max(1, job.pair.steps))]
    if job.pair.steps:
        named = {f"{n}{OF_STEP}{name}": value for n, one in enumerate(batches, 1) for name, value in one.items()}
        files.write_tensors(folder / "batches.safetensors", named)
    files.write_tensors(folder / "batch.safetensors", batches[0])


def of_step(batches: Mapping[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """Return the batch of a training step from the batches of all steps.

    Args:
        batches: tensors of `batches.safetensors`, named `STEP|NAME`.
        step: number of the step, counted from 1.

    Returns:
        Tensors of the batch by NAME, such as `input_ids`.
    """
    begun = f"{step}{OF_STEP}"
    return {name.removeprefix(begun): value for name, value in batches.items() if name.startswith(begun)}
