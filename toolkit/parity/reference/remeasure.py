"""More runs that measure the reference's rounding (see :mod:`toolkit.parity.followup.remeasure`)."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.reference.noise import measure_noise
from toolkit.parity.reference.points import ignore
from toolkit.parity.reference.step import make_step


def run(job: Job, folder: Path) -> dict[str, TensorRecord]:
    """Return by name the noise of the runs of ``remeasure-runs.json``, none of which repeats the job's."""
    step = make_step(job, folder)
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    step.run("float64", ignore)  # sets the buckets and signs of all other runs
    step.evaluate(ignore)
    step.train_on(ignore, truth)
    records = {name: TensorRecord(shape=[]) for name in truth}
    more = files.read(folder / "reference" / "remeasure-runs.json", dict[str, int])
    first = job.noise_runs
    measure_noise(step, truth, records, {dtype: range(first[dtype], first[dtype] + more[dtype]) for dtype in more})
    return records
