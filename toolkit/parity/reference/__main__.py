"""``python -m toolkit.parity.reference TASK JOB...``: do a task in each job folder.

A job folder's files: :mod:`toolkit.parity.job.files`.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from pathlib import Path
from types import ModuleType

from models import collector
from toolkit.machine.heap import keep_freed_memory
from toolkit.parity.job import files, user_code, worker
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import DESCRIBE, TRAJECTORY
from toolkit.parity.job.results import Execution, ReferenceResult
from toolkit.parity.reference.imports import left_out

collector.in_a_command()
with left_out(sys.argv[2:]):
    from toolkit.parity.reference.environment import flags, set_up, versions

#: Task -> its module, imported for it alone: the imports of all of them take two seconds. Each has
#: ``run(job, folder)``, which returns the content of the task's file.
MODULES = {
    files.RESULT: "measure",
    "forced_input": "forced_input",
    "remeasure": "remeasure",
    "constants": "rounded",
    "tokens": "tokens",
}


def main(task: str, folder: Path) -> None:
    """Do a task and write its file."""
    started = time.monotonic()
    job = files.read_job(folder)
    set_up(job.threads)
    if not (job.brief or job.streamed):  # of these what is kept may not fit beside what is needed
        keep_freed_memory()
    result = _module_of(job, task).run(job, folder)
    if isinstance(result, ReferenceResult):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        imported = user_code.imported_files() if job.pair else []
        result.execution = Execution(versions(), flags(), time.monotonic() - started, peak, imported)
    files.write_json(files.result_path(folder, "reference", task), result)


def _module_of(job: Job, task: str) -> ModuleType:
    with left_out(sys.argv[2:]):
        if task == DESCRIBE:
            return family_part(job.model, "reference")
        if task == TRAJECTORY:
            return family_part(job.model, "reference_trajectory")
        if task != "tokens":
            family_part(job.model, "reference")  # imports the rest of transformers that is needed
        name = "bitwise" if job.kernels is not None else MODULES[task]
        return importlib.import_module(f"toolkit.parity.reference.{name}")


if __name__ == "__main__":
    worker.run("reference", main, sys.argv[1], sys.argv[2:])
