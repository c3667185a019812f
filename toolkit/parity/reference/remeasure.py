"""Additional runs that measure the reference's rounding (see :mod:`toolkit.parity.followup.remeasure`)."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.exchange import files
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.reference.noise import measure_noise
from toolkit.parity.reference.points import keep_nothing
from toolkit.parity.reference.step import make_step


def run(job: Job, folder: Path) -> dict[str, TensorRecord]:
    """Return the noise of further runs of the reference, as a record of each tensor by name.

    ``reference/remeasure-runs.json`` has the number of further runs by dtype. Their numbers, which determine the
    nudges, follow the numbers of the job's own runs.

    Args:
        job: job that both workers have run.
        folder: folder of the job.
    """
    step = make_step(job, folder)
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    step.run("float64", keep_nothing)  # sets the buckets and signs of all other runs
    step.evaluate(keep_nothing)
    step.train_on(keep_nothing, truth)
    records = {name: TensorRecord(shape=[]) for name in truth}
    num_runs = files.read(folder / "reference" / "remeasure-runs.json", dict[str, int])
    runs = {dtype: range(job.noise_runs[dtype], job.noise_runs[dtype] + count) for dtype, count in num_runs.items()}
    measure_noise(step, truth, records, runs)
    return records
