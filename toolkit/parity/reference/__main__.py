"""``python -m toolkit.parity.reference TASK JOB...``: do a task in each job folder.

What is in a job folder, says :mod:`toolkit.parity.job.files`.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from toolkit.parity.job import files, worker
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import DESCRIBE
from toolkit.parity.job.results import Execution, ReferenceResult
from toolkit.parity.reference.imports import left_out

with left_out(sys.argv[2:]):
    from toolkit.parity.reference import bitwise, forced_input, measure, pair, remeasure, tokens
    from toolkit.parity.reference.environment import flags, set_up, versions


class Task(Protocol):
    """A module that does a task: ``run`` gives what the task's file is to hold."""

    def run(self, job: Job, folder: Path) -> Any: ...


TASKS: dict[str, Task] = {
    files.RESULT: measure,
    "forced_input": forced_input,
    "remeasure": remeasure,
    "tokens": tokens,
    DESCRIBE: pair,
}


def main(task: str, folder: Path) -> None:
    """Do a task, and leave its file."""
    started = time.monotonic()
    job = files.read_job(folder)
    set_up(job.threads)
    result = (bitwise if job.kernels is not None else TASKS[task]).run(job, folder)
    if isinstance(result, ReferenceResult):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        result.execution = Execution(versions(), flags(), time.monotonic() - started, peak)
    files.write_json(files.result_path(folder, "reference", task), result)


if __name__ == "__main__":
    worker.run("reference", main, sys.argv[1], sys.argv[2:])
