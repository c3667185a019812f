"""Start, supervision and end of a gate's processes.

Only the reference's process imports torch, and only the port's imports Paddle. A third process, the comparator,
measures the port's results.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.errors import Inconclusive, UserError
from toolkit.machine.scratch import child_process
from toolkit.parity.exchange import files, handover
from toolkit.parity.job import user_code
from toolkit.parity.processes import launch
from toolkit.parity.processes.worker import BY_USER_CODE, STACK

#: Beginning of the message about a worker that the system has killed.
KILLED_MESSAGE = "it was killed"
#: Name of the process that measures the messages of the port's process, and the tasks that need this process.
COMPARATOR = "comparator"
MEASURED_TASKS = (files.RESULT, "forced_input", "attribution")
#: Number of seconds that a worker has to log its stack.
SECONDS_FOR_STACK = 1.0


def run_workers(
    jobs: Sequence[Path],
    console: Console,
    interpreters: Mapping[str, str],
    watch: Callable[[], None] | None = None,
    task: str = files.RESULT,
) -> None:
    """Run a task in the workers of both sides, and return when both have finished.

    The port's worker starts up while the reference still computes.

    Args:
        jobs: folders of jobs, which the same two processes run one after another.
        console: console for progress.
        interpreters: interpreter of each side to run: both sides, or one of them.
        watch: function that is called repeatedly to show progress; None for a line with the running workers and the
            number of finished jobs.
        task: task of the workers: ``result`` for a gate's measurements, or a follow-up.

    Raises:
        UserError: the user's code has raised an error or has not ended in time.
        Inconclusive: a worker failed.
    """
    status = console.status(f"parity gate: running the {' and the '.join(interpreters)}") if watch is None else None
    start_seconds, limit = time.monotonic(), _time_limit(jobs)
    stopped_sides: list[str] = []
    with status or contextlib.nullcontext(), _start_workers(jobs, interpreters, task) as workers:
        while any(worker.poll() is None for worker in workers.values()):
            if stopped_sides := [side for side in workers if _has_stopped(side, workers, jobs[-1], task)]:
                break  # the others would wait for its missing files
            if time.monotonic() - start_seconds > limit:
                raise UserError(_describe_overdue_side(jobs, interpreters, workers, limit))
            if status is None:
                assert watch is not None
                watch()
                continue
            running = " and ".join(side for side in interpreters if _is_running(side, workers))
            seconds = f"{time.monotonic() - start_seconds:.0f} s"
            status.update(f"parity gate: {running} running, {_describe_progress(jobs, interpreters, task)}{seconds}")
            time.sleep(0.05)
    # When it fails, the port's pipe breaks: the port may have been seen to stop first.
    if words := _words_of_comparator(jobs, workers, task, has_stopped=COMPARATOR in stopped_sides):
        words = _without_job_paths(words, jobs)
        raise Inconclusive(f"parity gate: what the port computed could not be measured: {words}")
    for job in jobs:
        for side in _without_result(job, interpreters, stopped_sides, task):
            failure = files.failure_path(job, side, task)
            words = failure.read_text(encoding="utf-8").strip() if failure.exists() else ""
            if words and workers[side].returncode == BY_USER_CODE:
                raise UserError(f"the {'port' if side == 'candidate' else side} could not run: {words}")
            words = _without_job_paths(words or _last_words(workers[side], jobs[0] / f"{side}.log"), jobs)
            raise Inconclusive(f"parity gate: the {side} could not run: {words}{_way_out(side, words)}")


def _without_job_paths(message: str, jobs: Iterable[Path]) -> str:
    """Return a message without the paths of the job folders, which are temporary.

    Args:
        message: the message.
        jobs: job folders. Their files are named relative to them.
    """
    for job in jobs:
        message = message.replace(f"{job}{os.sep}", "")
    return message


def _words_of_comparator(
    jobs: Sequence[Path], workers: Mapping[str, subprocess.Popen], task: str, *, has_stopped: bool
) -> str:
    """Return the reason why the comparator failed; empty if it only lacked messages of the port's process.

    Args:
        jobs: folders of the jobs.
        workers: process of each side, and the comparator.
        task: task of the workers.
        has_stopped: whether the comparator has ended without a result.
    """
    failures = (files.failure_path(job, COMPARATOR, task) for job in jobs)
    words = next((failure.read_text(encoding="utf-8").strip() for failure in failures if failure.exists()), "")
    if words or not has_stopped or workers[COMPARATOR].returncode == 0:
        return words
    return _last_words(workers[COMPARATOR], jobs[0] / f"{COMPARATOR}.log")


def _without_result(job: Path, sides: Iterable[str], stopped_sides: Sequence[str], task: str) -> list[str]:
    """Return the sides that left no result of a job, with the earliest failure first.

    A later failure may only follow from the missing output of the other side. A side that the gate itself ended comes
    last.

    Args:
        job: folder of the job.
        sides: the sides that ran.
        stopped_sides: sides that ended without a result, not by the gate.
        task: task of the workers.
    """

    def failed_at(side: str) -> float:
        """Return the time of a side's failure; infinite if the gate has ended the side."""
        failure = files.failure_path(job, side, task)
        if failure.exists():
            return failure.stat().st_mtime
        return 0.0 if side in stopped_sides else float("inf")

    return sorted((side for side in sides if not files.result_path(job, side, task).exists()), key=failed_at)


def _time_limit(jobs: Sequence[Path]) -> float:
    """Return the number of seconds after which the workers are ended; infinite for a family.

    A pair's limit counts for each job and each mutant.
    """
    limit = 0.0
    for job in jobs:
        if not (job / "job.json").exists() or (content := files.read_job(job)).pair is None:
            return math.inf
        limit += content.pair.time_limit * (1 + len(content.mutants))
    return limit


def _describe_overdue_side(
    jobs: Sequence[Path], sides: Iterable[str], workers: Mapping[str, subprocess.Popen], limit: float
) -> str:
    """Return a message with the side of a user's pair that has not ended in time, and its current line.

    Args:
        jobs: folders of the jobs.
        sides: the sides that ran.
        workers: process of each side.
        limit: time limit in seconds.
    """
    pair = files.read_job(jobs[0]).pair
    assert pair is not None
    running = [side for side in sides if workers[side].poll() is None]
    for side in running:
        os.kill(workers[side].pid, STACK)
    time.sleep(SECONDS_FOR_STACK)
    lines = {side: _line_in(jobs[0] / f"{side}.log", user_code.locate_source(pair.source_of(side))) for side in running}
    side = next((side for side in reversed(running) if lines[side]), running[-1])
    where = f": it is at {lines[side]}" if lines[side] else ""
    side_name = "port" if side == "candidate" else side
    return f"the {side_name} has not ended after {limit:.0f} s{where}; --time-limit SECONDS gives it more"


def _line_in(log: Path, file: Path) -> str:
    """Return the innermost running line of a user's file, such as ``port.py:12, in forward``.

    The result is empty if no thread runs the file.

    Args:
        log: a worker's log with the stack of each of its threads.
        file: the user's file.
    """
    match = re.search(rf'File "{re.escape(str(file))}", line (\d+) in (.+)', log.read_text(errors="replace"))
    return f"{user_code.display_path(file)}:{match[1]}, in {match[2]}" if match else ""


def _is_running(side: str, workers: Mapping[str, subprocess.Popen]) -> bool:
    """Return whether a side's process still computes, or the comparator still measures its results."""
    comparators = (workers[COMPARATOR],) if side == "candidate" and COMPARATOR in workers else ()
    return any(worker.poll() is None for worker in (workers[side], *comparators))


def _has_stopped(side: str, workers: Mapping[str, subprocess.Popen], job: Path, task: str) -> bool:
    """Return whether a process has ended without its result. The comparator writes the port's result.

    Args:
        side: ``reference``, ``candidate`` or ``comparator``.
        workers: process of each side, and the comparator.
        job: folder of the last job.
        task: task of the workers.
    """
    if workers[side].poll() is None:
        return False
    if side == "candidate" and COMPARATOR in workers and workers[side].returncode == 0:
        return False
    result = files.result_path(job, "candidate" if side == COMPARATOR else side, task)
    return not result.exists()


def _describe_progress(jobs: Sequence[Path], sides: Iterable[str], task: str) -> str:
    """Return the number of finished jobs as text, such as ``3 of 20 done, ``; empty for a single job.

    A job is finished if all sides have written its result.

    Args:
        jobs: folders of the jobs.
        sides: the sides that run.
        task: task of the workers.
    """
    if len(jobs) == 1:
        return ""
    num_done = sum(all(files.result_path(job, side, task).exists() for side in sides) for job in jobs)
    return f"{num_done} of {len(jobs)} done, "


def _last_words(worker: subprocess.Popen, log: Path) -> str:
    """Return why a worker ended that has written no reason: its exit status and the end of its log.

    Args:
        worker: process of the worker.
        log: log file of the worker.
    """
    if worker.returncode == -signal.SIGKILL:
        return f"{KILLED_MESSAGE}, as a system does that has no memory left; a shorter text or fewer examples take less"
    return f"exit status {worker.returncode}; {' '.join(log.read_text(errors='replace')[-500:].split())}"


def _way_out(side: str, failure_reason: str) -> str:
    """Return advice on a reference that cannot run in this environment; empty in other cases.

    Args:
        side: side that could not run.
        failure_reason: reason of the failure.
    """
    if side == "reference" and re.search(r"No module named '(torch|transformers)'", failure_reason):
        return "; name a Python that has it with --reference-python, or replay a recorded one (toolkit parity replay)"
    return ""


@contextlib.contextmanager
def _start_workers(
    jobs: Sequence[Path], interpreters: Mapping[str, str], task: str
) -> Iterator[dict[str, subprocess.Popen]]:
    """Start the processes of a task, and yield them by name. None of them outlives the ``with`` block.

    Temporary files of a library, such as torch, are written into the job folder and removed with it.

    Args:
        jobs: folders of the jobs.
        interpreters: interpreter of each side to run.
        task: task of the workers.
    """
    workers: dict[str, subprocess.Popen] = {}
    with contextlib.ExitStack() as running:

        def start(side: str, python: str, **options: Any) -> None:
            """Start the process of a side, or the comparator, with its log file in the first job's folder."""
            with open(jobs[0] / f"{side}.log", "w") as log:
                command = launch.module_command(python, f"toolkit.parity.{side}", task, *map(str, jobs))
                worker = child_process(command, stdout=log, stderr=subprocess.STDOUT, **options)
                workers[side] = running.enter_context(worker)

        environment = {**launch.worker_environment(), "TMPDIR": str(jobs[0])}
        nothing = {"env": environment, "stdin": subprocess.DEVNULL}
        if "reference" in interpreters:
            start("reference", interpreters["reference"], **nothing)
        if "candidate" in interpreters and task not in MEASURED_TASKS:
            start("candidate", interpreters["candidate"], **nothing)
        elif "candidate" in interpreters:
            with handover.open_pipe() as (read, write):
                pipe_options = {"env": {**environment, handover.PIPE_VARIABLE: str(write)}, "pass_fds": [write]}
                start("candidate", interpreters["candidate"], **{**nothing, **pipe_options})
                start(COMPARATOR, sys.executable, env=environment, stdin=read)
        yield workers
