"""``python -m toolkit.parity.comparator TASK JOB...``: measure the messages of the port's process.

The messages come on standard input, one job after another. The measurements are written to the file of the task in each
job folder.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from pathlib import Path
from typing import Protocol

from toolkit.machine.heap import keep_freed_memory
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Message, read_messages
from toolkit.parity.job.job import Job
from toolkit.parity.processes import worker

#: Name of a task -> module of this package that measures it. Each module has a class ``Ledger(job, folder)``.
MODULES = {
    files.RESULT: "result",
    "forced_input": "forced_input",
    "attribution": "attribution",
}


class Ledger(Protocol):
    """Interface of an object that collects the measurements of one job.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
    """

    def __init__(self, job: Job, folder: Path) -> None: ...

    def handle(self, message: Message) -> None:
        """Handle a message of the port's process: measure its array or record its content.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
        """

    def result(self) -> object:
        """Return the content of the task's JSON file."""


def main(task: str, folder: Path) -> None:
    """Measure the messages of one job, and write the file of the task.

    No file is written if the port's process ends early, since that process reports its error itself.

    Args:
        task: name of the task, such as ``result`` (:data:`MODULES`).
        folder: job folder, with the reference's files.
    """
    if not SOURCE.peek(1):
        os._exit(0)
    job = files.read_job(folder)
    if not (job.brief or job.streamed):  # for large models, kept memory may not leave enough for the tensors
        keep_freed_memory()
    ledger = _ledger_of(job, task, folder)
    try:
        for message in read_messages(SOURCE):
            ledger.handle(message)
    except EOFError:
        os._exit(0)
    files.write_json(files.result_path(folder, "candidate", task), ledger.result())


def _ledger_of(job: Job, task: str, folder: Path) -> Ledger:
    """Return the ledger that measures the task for this job."""
    name = "bitwise" if job.kernels is not None else "stages" if job.streamed else MODULES[task]
    return importlib.import_module(f"toolkit.parity.comparator.{name}").Ledger(job, folder)


if __name__ == "__main__":
    SOURCE = io.BufferedReader(io.FileIO(0, closefd=False), 2**20)
    worker.run("comparator", main, sys.argv[1], sys.argv[2:])
