"""Has both sides of a pair train by themselves for some steps, from the same weights, batches and draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from toolkit.parity.job import files
from toolkit.parity.job.pair import TRAJECTORY
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.results import Trained, Training
from toolkit.parity.judge.trajectory import compare_trajectories


def train(job: Path, interpreters: Mapping[str, str], console: Console) -> Training:
    """Train both sides, the reference first, whose draws the port is given.

    Args:
        job: a folder of a job that both workers have run.

    Raises:
        UserError: code of the user's cannot be run.
        Inconclusive: a worker failed.
    """
    sides = {}
    for side in ("reference", "candidate"):
        run_workers([job], console, {side: interpreters[side]}, task=TRAJECTORY)
        sides[side] = files.read(files.result_path(job, side, TRAJECTORY), Trained)

    def read(side: str, run: str) -> dict[str, np.ndarray]:
        return files.read_tensors(job / side / f"trajectory-{run}.safetensors")

    of_reference = {
        dtype: [read("reference", f"{dtype}-{number}") for number in range(count)]
        for dtype, count in sides["reference"].runs.items()
    }
    truth, *of_reference["float64"] = of_reference["float64"]
    ours = {dtype: read("candidate", dtype) for dtype in files.read_job(job).dtypes}
    return compare_trajectories(truth, of_reference, ours, sides["reference"].order, sides["candidate"].optimizer)
