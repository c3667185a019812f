"""``python -m toolkit.parity.candidate TASK JOB...``: do a task of the port's worker in each job folder.

The task is ``result`` (the gate itself) or a follow-up such as ``forced_input`` (:data:`MODULES`). The contents of a
job folder are described in :mod:`toolkit.parity.exchange.files`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import time
from pathlib import Path
from types import ModuleType

from models.operations import kernels
from toolkit.machine import runtime
from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.exchange import files, handover
from toolkit.parity.exchange.results import Execution
from toolkit.parity.job import user_code
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import DESCRIBE, TRAJECTORY
from toolkit.parity.processes import worker
from toolkit.terminal.quiet import silence_startup

#: Name of a task -> module of this package that does it, imported once Paddle's environment is set. Each module has a
#: function ``run(job, folder, sender, kernels)``. It sends its results and returns None, or returns the content of the
#: task's JSON file if the comparator has nothing to measure.
MODULES = {
    files.RESULT: "result",
    "forced_input": "forced_input",
    "attribution": "attribution",
    "tokens": "tokens",
}


def main(task: str, folder: Path) -> None:
    """Do a task for one job, and send its results to the comparator.

    Args:
        task: name of the task, such as ``result`` (:data:`MODULES`).
        folder: job folder, with the reference's files.
    """
    start_seconds = time.monotonic()
    silence_startup()  # the Trainer would write 160 lines for each port that it trains
    job = files.read_job(folder)
    if job.pair is not None:  # a pair needs no kernels of this project, and its interpreter may lack their requirements
        os.environ.pop(kernels.VARIABLE, None)
    with _kernels_of(job, task, folder) as others:
        runtime.configure_paddle(job.device, job.threads, keeps_freed_memory=not job.brief)
        family_part(job.model, "candidate")  # loaded while the reference still computes
        record = _module_of(job, task).run(job, folder, SENDER, others)
    if record is not None:
        files.write_json(files.result_path(folder, "candidate", task), record)
        return
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    user_modules = user_code.imported_files() if job.pair else []
    seconds = time.monotonic() - start_seconds
    SENDER.send_json(
        "execution", Execution(runtime.installed_versions(), runtime.current_flags(), seconds, peak, user_modules)
    )
    SENDER.end()


def _module_of(job: Job, task: str) -> ModuleType:
    """Return the module with the function ``run`` that does the task for this job."""
    if task == DESCRIBE:
        return family_part(job.model, "candidate_description")
    if task == TRAJECTORY:
        return family_part(job.model, "candidate_trajectory")
    name = "bitwise" if job.kernels is not None else MODULES[task]
    return importlib.import_module(f"toolkit.parity.candidate.{name}")


def _kernels_of(job: Job, task: str, folder: Path) -> contextlib.AbstractContextManager[KernelClient | None]:
    """Return a context manager that runs the reference's kernels if the task needs them, and yields None otherwise.

    They start before Paddle's environment is set: some of its variables choose another code path in the mathematics
    library that torch uses, too.
    """
    if job.kernels is None and task != "attribution":
        return contextlib.nullcontext()
    return KernelClient(folder, job.reference_python)


if __name__ == "__main__":
    SENDER = handover.open_sender()
    worker.run("candidate", main, sys.argv[1], sys.argv[2:])
