"""Independent training of a pair's two sides for some steps, from the same weights, batches and draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Training, TrajectoryFacts
from toolkit.parity.job.pair import TRAJECTORY
from toolkit.parity.judge.trajectory import compare_trajectories
from toolkit.parity.processes.processes import run_workers


def train_sides(job: Path, interpreters: Mapping[str, str], console: Console) -> Training:
    """Train both sides of a pair independently, and return the comparison of their trajectories.

    The reference is trained first, since the port replays its draws.

    Args:
        job: folder of a job that both workers have run.
        interpreters: interpreter of each side.
        console: console for progress.

    Raises:
        UserError: the user's code cannot be run.
        Inconclusive: a worker failed.
    """
    sides = {}
    for side in ("reference", "candidate"):
        run_workers([job], console, {side: interpreters[side]}, task=TRAJECTORY)
        sides[side] = files.read(files.result_path(job, side, TRAJECTORY), TrajectoryFacts)

    def read(side: str, run: str) -> dict[str, np.ndarray]:
        """Return the trajectory of a side's run, such as ``float64-0``, by name."""
        return files.read_tensors(job / side / f"trajectory-{run}.safetensors")

    reference_runs = {
        dtype: [read("reference", f"{dtype}-{number}") for number in range(count)]
        for dtype, count in sides["reference"].runs.items()
    }
    truth, *reference_runs["float64"] = reference_runs["float64"]
    ours = {dtype: read("candidate", dtype) for dtype in files.read_job(job).dtypes}
    return compare_trajectories(truth, reference_runs, ours, sides["reference"].order, sides["candidate"].optimizer)
