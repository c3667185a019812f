"""Workers that tests fork measure what those that are started do, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import TINY_REFORMER, quiet, reformer_request
from warm_workers import Origins, Started

from toolkit.errors import Inconclusive
from toolkit.machine.scratch import child
from toolkit.parity.job import launch, processes
from toolkit.parity.job.build import workers_of, write_request
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.synthetic import randomize_constants


@pytest.fixture
def own_origins() -> Iterator[Origins]:
    """Processes to fork from that no other test has asked for."""
    origins = Origins()
    yield origins
    origins.close()


def written(folder: Path) -> Path:
    """A small gate's job."""
    request = reformer_request(TINY_REFORMER, dtypes=("float64",))
    write_request(request, randomize_constants(request.weights, request.seed)[0], folder)
    return folder


def left(job: Path) -> dict[str, object]:
    """What both workers have left, but for what they took."""
    found: dict[str, object] = {}
    for side in ("reference", "candidate"):
        for path in sorted((job / side).rglob("*")):
            if path.name == "result.json":
                result = json.loads(path.read_text())
                del result["execution"]["seconds"], result["execution"]["peak_bytes"]
                found[f"{side}/{path.name}"] = result
            elif path.is_file():
                found[str(path.relative_to(job))] = path.read_bytes()
    return found


def test_a_forked_worker_leaves_what_a_started_one_does(tmp_path, own_origins, monkeypatch):
    interpreters, kinds = workers_of(reformer_request(TINY_REFORMER)), []

    @contextlib.contextmanager
    def noted(*arguments, **options):
        with own_origins.child(*arguments, **options) as worker:
            kinds.append(type(worker))
            yield worker

    for number, how in enumerate((child, noted, noted)):
        monkeypatch.setattr(processes, "child", how)
        run_workers([written(tmp_path / str(number))], quiet(), interpreters)
    assert kinds == [Started] * 6
    started, *forked = (left(tmp_path / str(number)) for number in range(3))
    assert len(started) > 2 and forked == [started, started]


def test_a_forked_worker_that_is_killed_is_told_of_and_ends_the_other(tmp_path, own_origins, monkeypatch):
    workers = []

    @contextlib.contextmanager
    def killed(command, **options):
        with own_origins.child(command, **options) as worker:
            workers.append(worker)
            if "toolkit.parity.reference" in command:
                os.kill(worker.pid, signal.SIGKILL)
            yield worker

    monkeypatch.setattr(processes, "child", killed)
    with pytest.raises(Inconclusive, match="the reference could not run: it was killed"):
        run_workers([written(tmp_path / "job")], quiet(), workers_of(reformer_request(TINY_REFORMER)))
    # The comparator may have ended before, when the port's end of their pipe was closed.
    assert [worker.returncode for worker in workers][:2] == [-signal.SIGKILL] * 2
    assert workers[2].returncode in (0, -signal.SIGKILL)
    assert not any(Path(f"/proc/{worker.pid}").exists() for worker in workers)


def test_another_environment_is_another_process(tmp_path, own_origins):
    """What is set when Python or a framework starts is set then."""
    command = launch.module_command(sys.executable, "toolkit.parity.reference", "tokens", str(written(tmp_path / "a")))
    usual, other = launch.worker_environment(), {**launch.worker_environment(), "OMP_NUM_THREADS": "7"}
    first = own_origins._origin(command, usual)
    assert first is not None and own_origins._origin(command, {**usual, "TMPDIR": "x"}) is first
    assert own_origins._origin(["python", *command[1:]], usual) is None
    assert own_origins._origin(command, other) is None and own_origins._origin(command, usual) is first
    assert own_origins._origin(command, other) is None
    later = own_origins._origin(command, other)  # it has stayed so
    assert later is not None and first.fileno() == -1
    assert own_origins._origin(command, usual) is None
