"""Runs of the reference with R64's input for each operation.

R64's tensors at all points are the truth. The next runs replace each tensor by the truth after it is measured. So the
difference of a tensor is the rounding of a single operation, the noise baseline for the operations of the port.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from toolkit.parity.exchange import files
from toolkit.parity.exchange.tensor_file import TensorFile, TensorWriter
from toolkit.parity.job.job import Job
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.masked_scores import split_masked_scores
from toolkit.parity.reference.noise import measure_runs, reorder_sums, runs_of
from toolkit.parity.reference.points import Keep, Points
from toolkit.parity.reference.result_fingerprints import DispatchedResults
from toolkit.parity.reference.rounded_constants import ConstantRounding, split_constants
from toolkit.parity.reference.step import make_step


def run(job: Job, folder: Path) -> dict[str, TensorRecord]:
    """Return the statistics of each tensor of the operation trace with the noise of the reference's operations.

    The records are by name, in execution order. R64's tensors are written to ``forced_input.safetensors``, and the
    fingerprints of a pair's results to ``fingerprints.json``.

    Args:
        job: job that both workers have run.
        folder: folder of the job.
    """
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
        files.write_json(folder / "reference" / files.FINGERPRINTS, results.collect())
    truth = TensorFile(path)
    records = {
        part: TensorRecord.of(error_stats.describe(true))
        for name, value in truth.items()
        for part, _, true in split_masked_scores(name, value, value, truth)
    }

    def run_reordered(dtype: str, number: int, nudge: int, measure: Keep) -> None:
        """Trace one noise run of the reference with reordered sums and nudged inputs."""
        with reorder_sums(dtype, number):
            step.trace(dtype, Points(measure, truth, nudge), nudge)

    def run_rounded(dtype: str, number: int, nudge: int, measure: Keep) -> None:
        """Trace a float64 run of the reference with one group of rounded constants."""
        with ConstantRounding(key_groups[number]):
            step.trace(dtype, Points(measure, truth))

    measure_runs(run_reordered, truth, records, runs_of(job))
    if key_groups := split_constants(job.rounded) if job.rounded else []:
        measure_runs(run_rounded, truth, records, {"float64": range(len(key_groups))})
    return records
