"""``python -m toolkit.parity.candidate JOB...``: run the job in each folder (see :mod:`toolkit.parity.bundle`)."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from pathlib import Path
from typing import Any

from models.families import part
from toolkit import runtime
from toolkit.parity.job import files, worker
from toolkit.parity.job.tensor_file import TensorFile


def main(folder: Path) -> None:
    """The port in every dtype of the job, its mutants, and what its tokenizer makes of the job's texts."""
    started = time.monotonic()
    job = files.read_json(folder / "job.json")
    if job["ops"]:
        from toolkit.parity.candidate import bitwise

        files.write_json(folder / "candidate" / "result.json", {"schema": files.SCHEMA, **bitwise.run(job, folder)})
        return
    runtime.configure(job["device"], job["threads"], keep_memory=not job["spare_memory"])
    part(job["model"], "modeling")  # loaded while the reference still computes
    from toolkit.parity.candidate.tokens import tokens

    tokenized = tokens(job["tokenizer"]) if job["tokenizer"] else None
    result = {
        "schema": files.SCHEMA,
        **(run_streamed(job, folder) if job["streamed"] else run_whole(job, folder)),
        "tokens": tokenized,
        "versions": runtime.versions(),
        "flags": runtime.flags(),
        "seconds": time.monotonic() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    files.write_json(folder / "candidate" / "result.json", result)


def run_whole(job: dict, folder: Path) -> dict[str, Any]:
    """The port with the whole model in memory, in every dtype, and its mutants."""
    from toolkit.parity.candidate import generators
    from toolkit.parity.candidate.measure import measure_dtype, measure_mutant

    done = "result.json" if job["spare_memory"] else "order.json"
    files.wait_for(folder / "reference" / done, folder / "reference" / "failed")
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    return {
        "dtypes": {dtype: measure_dtype(job, folder, truth, dtype) for dtype in job["dtypes"]},
        "generators": generators.measure(job, folder),
        "mutants": {name: measure_mutant(job, folder, truth, name) for name in job["mutants"]},
    }


def run_streamed(job: dict, folder: Path) -> dict[str, Any]:
    """The port stage by stage; mutants are all in force at once, as each stage is computed once."""
    from toolkit.parity.candidate import streamed
    from toolkit.parity.mutants import by_name

    with contextlib.ExitStack() as faults:
        for name in job["mutants"]:
            faults.enter_context(by_name(name).in_force())
        return streamed.run(job, folder)


if __name__ == "__main__":
    worker.run("candidate", main, sys.argv[1:])
