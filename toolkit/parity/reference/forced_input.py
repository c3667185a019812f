"""``python -m toolkit.parity.reference.trace JOB``: the reference operation by operation, each on R64's own input.

R64's tensors at every point are the truth. The reference is then run again with each of its tensors replaced by the
truth right after it was measured: what is left is the rounding of one operation, the yardstick for the port's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from toolkit.parity.job import files, worker
from toolkit.parity.job.tensor_file import TensorFile, TensorWriter
from toolkit.parity.measure import error_stats
from toolkit.parity.reference.__main__ import make_step, set_up
from toolkit.parity.reference.noise import in_runs, runs_of, sums_in_another_order
from toolkit.parity.reference.points import Points
from toolkit.parity.reference.recorder import Keep


def main(folder: Path) -> None:
    """Leave ``trace/truth.safetensors``, then ``trace/reference.json``: by name, in the order of execution, the size of
    each tensor and the reference's errors there."""
    job = files.read_json(folder / "job.json")
    set_up(job)
    step = make_step(job, folder)
    place = folder / "forced_input"
    records: dict[str, dict] = {}
    with TensorWriter(place / "truth.safetensors") as writer:

        def keep(name: str, value: np.ndarray) -> None:
            writer.add(name, value)
            records[name] = {**error_stats.describe(error_stats.as_compared(name, value)), "noise": {}, "noise_max": {}}

        step.trace("float64", Points(keep))
    truth = TensorFile(place / "truth.safetensors")

    def once(dtype: str, run: int, nudge: int, measure: Keep) -> None:
        with sums_in_another_order(dtype, run):
            step.trace(dtype, Points(measure, truth, nudge), nudge)

    in_runs(once, truth, records, runs_of(job))
    files.write_json(place / "reference.json", records)


if __name__ == "__main__":
    worker.run("forced_input", main, sys.argv[1:])
