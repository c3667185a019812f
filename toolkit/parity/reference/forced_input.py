"""The reference operation by operation, each on R64's own input.

R64's tensors at every point are the truth. The reference is then run again with each of its tensors replaced by the
truth right after it was measured: what is left is the rounding of one operation, the noise baseline of the port's.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile, TensorWriter
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.masked_scores import compared
from toolkit.parity.reference.noise import in_runs, runs_of, sums_in_another_order
from toolkit.parity.reference.points import Keep, Points
from toolkit.parity.reference.step import make_step


def run(job: Job, folder: Path) -> dict[str, TensorRecord]:
    """Leave ``forced_input.safetensors``; returns by name, in the order of execution, the size of each tensor and the
    reference's errors there."""
    step = make_step(job, folder)
    path = folder / "reference" / "forced_input.safetensors"
    with TensorWriter(path) as writer:
        step.trace("float64", Points(writer.add))
    truth = TensorFile(path)
    records = {
        part: TensorRecord.of(error_stats.describe(true))
        for name, value in truth.items()
        for part, _, true in compared(name, value, value, truth)
    }

    def once(dtype: str, number: int, nudge: int, measure: Keep) -> None:
        with sums_in_another_order(dtype, number):
            step.trace(dtype, Points(measure, truth, nudge), nudge)

    in_runs(once, truth, records, runs_of(job))
    return records
