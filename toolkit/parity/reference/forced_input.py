"""The reference operation by operation, each on R64's own input.

R64's tensors at every point are the truth. The reference is then run again, each tensor being replaced by the truth
right after it is measured: what is left is one operation's rounding, the noise baseline of the port's.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile, TensorWriter
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.masked_scores import split_masked_scores
from toolkit.parity.reference.dispatched import DispatchedResults
from toolkit.parity.reference.noise import in_runs, runs_of, sums_in_another_order
from toolkit.parity.reference.points import Keep, Points
from toolkit.parity.reference.rounded import ConstantsRounded, subsets
from toolkit.parity.reference.step import make_step


def run(job: Job, folder: Path) -> dict[str, TensorRecord]:
    """Write ``forced_input.safetensors``, and of a user's pair the fingerprints of all results. Returns by name, in
    execution order, each tensor's size and the reference's errors."""
    step = make_step(job, folder)
    path = folder / "reference" / "forced_input.safetensors"
    with (
        TensorWriter(path) as writer,
        DispatchedResults(step.model, step.batch.values()) if job.pair else nullcontext() as results,
    ):
        points = Points(writer.add)
        step.trace("float64", points)
    files.write_tensors(folder / "reference" / files.PADDING, points.padding)
    if results is not None:
        files.write_json(folder / "reference" / files.FINGERPRINTS, results.found())
    truth = TensorFile(path)
    records = {
        part: TensorRecord.of(error_stats.describe(true))
        for name, value in truth.items()
        for part, _, true in split_masked_scores(name, value, value, truth)
    }

    def once(dtype: str, number: int, nudge: int, measure: Keep) -> None:
        with sums_in_another_order(dtype, number):
            step.trace(dtype, Points(measure, truth, nudge), nudge)

    def rounded(dtype: str, number: int, nudge: int, measure: Keep) -> None:
        with ConstantsRounded(chosen[number]):
            step.trace(dtype, Points(measure, truth))

    in_runs(once, truth, records, runs_of(job))
    if chosen := subsets(job.rounded) if job.rounded else []:
        in_runs(rounded, truth, records, {"float64": range(len(chosen))})
    return records
