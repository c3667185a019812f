"""``python -m toolkit.parity.reference.again JOB``: more runs that measure the reference's rounding.

Why, see :mod:`toolkit.parity.doubt`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toolkit.parity.job import files, worker
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.reference.__main__ import make_step, set_up
from toolkit.parity.reference.noise import measure_noise
from toolkit.parity.reference.recorder import ignore


def main(folder: Path) -> None:
    """Leave ``again/reference.json``: by name, ``noise`` and ``noise_max`` of the runs that ``again/runs.json`` asks
    for, none of which is one of the job's own."""
    job = files.read_json(folder / "job.json")
    set_up(job)
    step = make_step(job, folder)
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    step.run("float64", ignore)  # it decides which buckets and signs all others take
    step.train_on(ignore, truth)
    records: dict[str, dict] = {name: {"noise": {}, "noise_max": {}} for name in truth}
    done = job["noise_runs"]
    more = files.read_json(folder / "remeasure" / "runs.json")
    runs = {dtype: range(done[dtype], done[dtype] + count) for dtype, count in more.items()}
    measure_noise(step, truth, records, runs)
    files.write_json(folder / "remeasure" / "reference.json", records)


if __name__ == "__main__":
    worker.run("remeasure", main, sys.argv[1:])
