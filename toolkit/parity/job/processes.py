"""The two processes of a gate: started, watched, ended. Only the reference's imports torch, only the port's Paddle."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from toolkit.errors import Inconclusive, UserError
from toolkit.parity.job import files, launch
from toolkit.parity.job.worker import BY_USER_CODE
from toolkit.scratch import child

#: What is said of a worker that has ended without a word.
KILLED = "it was killed"


def run_workers(
    jobs: Sequence[Path],
    console: Console,
    interpreters: Mapping[str, str],
    watch: Callable[[], None] | None = None,
    task: str = files.RESULT,
) -> None:
    """Run the workers at once; the Paddle one starts up while the reference still computes.

    Args:
        jobs: folders of jobs, done one after another by the same two processes.
        interpreters: side -> the Python that runs it: both, or one of them.
        watch: called over and over while they run, to show what they do; by default a line says which of them runs,
            and how many jobs both have done.
        task: what they do: ``result``, which is a gate's measurements, or a follow-up.

    Raises:
        UserError: code of the user's that one of them ran has raised something.
        Inconclusive: one of them failed.
    """
    status = console.status(f"parity gate: running the {' and the '.join(interpreters)}") if watch is None else None
    started = time.monotonic()
    stopped: list[str] = []
    with status or contextlib.nullcontext(), _workers(jobs, interpreters, task) as workers:
        while any(worker.poll() is None for worker in workers.values()):
            ended = [side for side, worker in workers.items() if worker.poll() is not None]
            if stopped := [side for side in ended if not files.result_path(jobs[-1], side, task).exists()]:
                break  # the other would wait for what it has not left
            if status is None:
                assert watch is not None
                watch()
                continue
            running = " and ".join(side for side, worker in workers.items() if worker.poll() is None)
            seconds = f"{time.monotonic() - started:.0f} s"
            status.update(f"parity gate: {running} running, {_done(jobs, interpreters, task)}{seconds}")
            time.sleep(0.05)
    for job in jobs:
        for side in _without_result(job, workers, stopped, task):
            failure = files.failure_path(job, side, task)
            words = failure.read_text(encoding="utf-8").strip() if failure.exists() else ""
            if words and workers[side].returncode == BY_USER_CODE:
                raise UserError(f"the {'port' if side == 'candidate' else side} could not run: {words}")
            words = words or _last_words(workers[side], jobs[0] / f"{side}.log")
            raise Inconclusive(f"parity gate: the {side} could not run: {words}{_way_out(side, words)}")


def _without_result(job: Path, sides: Iterable[str], stopped: Sequence[str], task: str) -> list[str]:
    """The sides that left no result, that first which failed first: the other may have failed for want of what it was
    to leave. One that was ended by the gate comes last."""

    def failed_at(side: str) -> float:
        failure = files.failure_path(job, side, task)
        if failure.exists():
            return failure.stat().st_mtime
        return 0.0 if side in stopped else float("inf")

    return sorted((side for side in sides if not files.result_path(job, side, task).exists()), key=failed_at)


def _done(jobs: Sequence[Path], sides: Iterable[str], task: str) -> str:
    """How many of several jobs all sides have done, for a line; of one job nothing is to be said."""
    if len(jobs) == 1:
        return ""
    done = sum(all(files.result_path(job, side, task).exists() for side in sides) for job in jobs)
    return f"{done} of {len(jobs)} done, "


def _last_words(worker: subprocess.Popen, log: Path) -> str:
    """Why a worker ended that could not say so itself."""
    if worker.returncode == -signal.SIGKILL:
        return f"{KILLED}, as a system does that has no memory left; a shorter text or fewer examples take less"
    return f"exit status {worker.returncode}; {' '.join(log.read_text(errors='replace')[-500:].split())}"


def _way_out(side: str, words: str) -> str:
    """What to do about a reference that cannot run in this environment."""
    if side == "reference" and re.search(r"No module named '(torch|transformers)'", words):
        return "; name a Python that has it with --reference-python, or replay a recorded one (toolkit parity replay)"
    return ""


@contextlib.contextmanager
def _workers(jobs: Sequence[Path], interpreters: Mapping[str, str], task: str) -> Iterator[dict[str, subprocess.Popen]]:
    """Start the workers; whatever happens, none outlives the ``with`` block. What a library leaves among the temporary
    files, as torch does, goes with the job."""
    environment = {**launch.environment(), "TMPDIR": str(jobs[0])}
    workers: dict[str, subprocess.Popen] = {}
    with contextlib.ExitStack() as running:
        for side, python in interpreters.items():
            with open(jobs[0] / f"{side}.log", "w") as log:
                worker = child(
                    launch.module_command(python, f"toolkit.parity.{side}", task, *map(str, jobs)),
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
                workers[side] = running.enter_context(worker)
        yield workers
