"""The batches of a pair's steps, which one side's file gives to both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import batch_of

#: Separates a batch's step from its keys.
OF_STEP = "|"


def write_batches(source: Any, job: Job, folder: Path) -> None:
    """Write the batch that a pair is compared on, and before it those that it trains on: of seed, seed + 1, ..."""
    assert job.pair is not None
    batches = [batch_of(source, dict(job.config), job.seed + count) for count in range(max(1, job.pair.steps))]
    if job.pair.steps:
        named = {f"{n}{OF_STEP}{name}": value for n, one in enumerate(batches, 1) for name, value in one.items()}
        files.write_tensors(folder / "batches.safetensors", named)
    files.write_tensors(folder / "batch.safetensors", batches[0])


def of_step(batches: Mapping[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """Return the batch of a step, from 1 on, of the file that holds those of all steps."""
    begun = f"{step}{OF_STEP}"
    return {name.removeprefix(begun): value for name, value in batches.items() if name.startswith(begun)}
