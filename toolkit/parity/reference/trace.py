"""``python -m toolkit.parity.reference.trace JOB``: the reference operation by operation, each on R64's own input.

R64's tensors at every point are the truth. The reference is then run again with each of its tensors replaced by the
truth right after it was measured: what is left is the rounding of one operation, the yardstick for the port's.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np

from toolkit.parity import bundle, spread, worker
from toolkit.parity.reference.__main__ import make_step, set_up
from toolkit.parity.reference.points import Points
from toolkit.parity.reference.reordered import SumsReordered
from toolkit.parity.reference.step import Step
from toolkit.parity.tensors import TensorFile, TensorWriter


def main(folder: Path) -> None:
    """Leave ``trace/truth.safetensors``, then ``trace/reference.json``: by name, in the order of execution, the size of
    each tensor and the reference's errors there."""
    job = bundle.read_json(folder / "job.json")
    set_up(job)
    step = make_step(job, folder)
    place = folder / "trace"
    records: dict[str, dict] = {}
    with TensorWriter(place / "truth.safetensors") as writer:

        def keep(name: str, value: np.ndarray) -> None:
            writer.add(name, value)
            records[name] = {**spread.describe(spread.as_compared(name, value)), "noise": {}, "noise_max": {}}

        step.trace("float64", Points(keep))
    _measure_noise(step, TensorFile(place / "truth.safetensors"), records, job["noise_runs"])
    bundle.write_json(place / "reference.json", records)


def _measure_noise(step: Step, truth: TensorFile, records: dict[str, dict], runs: dict[str, int]) -> None:
    """As :func:`.noise.measure_noise`, of one operation at a time."""
    for dtype, count in runs.items():
        for record in records.values():
            record["noise"][dtype], record["noise_max"][dtype] = [], []

        def measure(name: str, value: np.ndarray, dtype: str = dtype) -> None:
            error = spread.difference(*(spread.as_compared(name, one) for one in (value, truth[name])))
            records[name]["noise"][dtype].append(error["rms"])
            records[name]["noise_max"][dtype].append(error["max"])

        for run in range(count):
            with SumsReordered(run) if dtype == "float64" else contextlib.nullcontext():
                step.trace(dtype, Points(measure, truth), nudge=run + (dtype == "float64"))


if __name__ == "__main__":
    worker.run("trace", main, sys.argv[1:])
