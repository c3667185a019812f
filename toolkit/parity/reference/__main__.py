"""``python -m toolkit.parity.reference TASK JOB...``: run a task of the reference's worker in each job folder.

:mod:`toolkit.parity.exchange.files` describes the files of a job folder.
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
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Execution, ReferenceResult
from toolkit.parity.job import user_code
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import DESCRIBE, TRAJECTORY
from toolkit.parity.processes import worker
from toolkit.parity.reference.imports import hide_packages

collector.skip_collection_at_exit()
with hide_packages(sys.argv[2:]):
    from toolkit.parity.reference.environment import read_flags, read_versions, set_up

#: Name of the module that runs each task, by the task. Its function ``run(job, folder)`` returns the content of the
#: task's file. Only this module is imported, because the imports of all modules take two seconds.
MODULES = {
    files.RESULT: "measure",
    "forced_input": "forced_input",
    "remeasure": "remeasure",
    "constants": "rounded_constants",
    "tokens": "tokens",
}


def main(task: str, folder: Path) -> None:
    """Run a task of the reference in a job folder, and write the task's file.

    Args:
        task: name of the task, such as ``result`` or ``forced_input``.
        folder: folder of the job.
    """
    start_seconds = time.monotonic()
    job = files.read_job(folder)
    set_up(job.threads)
    if not (job.brief or job.streamed):  # such a job may need the memory that freed tensors would keep
        keep_freed_memory()
    result = _import_task(job, task).run(job, folder)
    if isinstance(result, ReferenceResult):
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        imported_files = user_code.imported_files() if job.pair else []
        seconds = time.monotonic() - start_seconds
        result.execution = Execution(read_versions(), read_flags(), seconds, peak_bytes, imported_files)
    files.write_json(files.result_path(folder, "reference", task), result)


def _import_task(job: Job, task: str) -> ModuleType:
    """Import and return the module whose ``run`` computes a task of the job."""
    with hide_packages(sys.argv[2:]):
        if task == DESCRIBE:
            return family_part(job.model, "reference_description")
        if task == TRAJECTORY:
            return family_part(job.model, "reference_trajectory")
        if task != "tokens":
            family_part(job.model, "reference")  # imports the rest of transformers that is needed
        name = "bitwise" if job.kernels is not None else MODULES[task]
        return importlib.import_module(f"toolkit.parity.reference.{name}")


if __name__ == "__main__":
    worker.run("reference", main, sys.argv[1], sys.argv[2:])
