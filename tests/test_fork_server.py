"""A forked program does what the same program does when it starts by itself, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from gates import ROOT, TINY_REFORMER, copied_source, quiet, reformer_request
from kills import processes_of, write_recipes

from toolkit.errors import Inconclusive
from toolkit.machine import scratch
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.processes import launch
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request.build import workers_of, write_request

TOOLKIT = [sys.executable, "-m", "toolkit"]


@pytest.fixture
def processes(monkeypatch) -> list[subprocess.Popen]:
    """The processes that the test has started, in the order of their start."""
    started: list[subprocess.Popen] = []

    class RecordedPopen(fork_server.ForkingPopen):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", RecordedPopen)
    scratch._start_janitor()  # which is started once, by whichever gate is the first
    started.clear()
    return started


@pytest.fixture
def without_server(monkeypatch):
    """A function after which programs start by themselves."""
    return lambda: monkeypatch.delenv(fork_server.ADDRESS)


def written_job(folder: Path) -> Path:
    """Write the job of a small gate."""
    request = reformer_request(TINY_REFORMER, dtypes=("float64",))
    write_request(request, randomize_constants(request.weights, request.seed)[0], folder)
    return folder


def results_of(job: Path) -> dict[str, object]:
    """Read what both workers have written, without times and memory."""
    results: dict[str, object] = {}
    for side in ("reference", "candidate"):
        for path in sorted((job / side).rglob("*")):
            if path.name == "result.json":
                result = json.loads(path.read_text())
                del result["execution"]["seconds"], result["execution"]["peak_bytes"]
                results[f"{side}/{path.name}"] = result
            elif path.is_file():
                results[str(path.relative_to(job))] = path.read_bytes()
    return results


def test_a_forked_gate_writes_what_a_gate_with_new_interpreters_writes(tmp_path, processes, without_server):
    interpreters = workers_of(reformer_request(TINY_REFORMER))
    jobs = [written_job(tmp_path / str(number)) for number in range(3)]
    for job in jobs[:2]:
        run_workers([job], quiet(), interpreters)
    assert [process._status is not None for process in processes] == [True] * 6
    without_server()
    run_workers([jobs[2]], quiet(), interpreters)
    assert [process._status is not None for process in processes[6:]] == [False] * 3
    *forked, started = map(results_of, jobs)
    assert len(started) > 2 and forked == [started, started]


def test_a_forked_run_writes_what_a_run_with_a_new_interpreter_writes(tmp_path, without_server):
    recipe = write_recipes(tmp_path)[0]
    runs = {}
    for name in ("forked", "started"):
        if name == "started":
            without_server()
        asked = ["finetune", recipe, f"train.output_dir={tmp_path / name}", "train.max_steps=8", "--skip-parity", "x"]
        runs[name] = subprocess.run([*TOOLKIT, *map(str, asked)], cwd=ROOT, capture_output=True, text=True)
    assert runs["forked"].returncode == runs["started"].returncode == 0, runs
    lines = [run.stdout.replace(str(tmp_path / name), "RUN").splitlines() for name, run in runs.items()]
    assert all(one == other for one, other in zip(*lines, strict=True) if not one.startswith("trained "))
    assert runs["forked"].stderr == runs["started"].stderr
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in runs]
    assert weights[0] == weights[1]


def test_a_forked_worker_that_is_killed_is_reported_and_ends_the_others(tmp_path, processes, monkeypatch):
    class FirstIsKilled(subprocess.Popen):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            if len(processes) == 1:
                os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(subprocess, "Popen", FirstIsKilled)
    with pytest.raises(Inconclusive, match="the reference could not run: it was killed"):
        run_workers([written_job(tmp_path / "job")], quiet(), workers_of(reformer_request(TINY_REFORMER)))
    # The comparator may have ended before, when the port's end of their pipe was closed.
    assert [process.returncode for process in processes][:2] == [-signal.SIGKILL] * 2
    assert processes[2].returncode in (0, -signal.SIGKILL)
    assert not any(Path(f"/proc/{process.pid}").exists() for process in processes)


def test_a_forked_command_runs_the_source_tree_streams_folder_and_environment_of_its_own(tmp_path):
    source = copied_source(
        tmp_path / "copy", "toolkit/cli.py", ('@recipe.command("list")', '@recipe.command("enumerate")')
    )
    (tmp_path / "elsewhere").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "70"}
    for command, message in (("enumerate", f"error: {source}/recipes: holds no recipes"), ("list", "No such command")):
        with open(tmp_path / "log", "w") as log:
            asked = [*TOOLKIT, "recipe", command]
            done = subprocess.run(asked, cwd=tmp_path / "elsewhere", env=environment, stdout=log, stderr=log)
        assert done.returncode == 2 and message in (tmp_path / "log").read_text()


def test_a_program_is_recognized_only_if_nothing_could_tell_the_difference(tmp_path):
    environment = launch.worker_environment()
    worker = launch.module_command(
        sys.executable, "toolkit.parity.reference", "tokens", str(written_job(tmp_path / "job"))
    )
    program = fork_server.recognize_program(worker, environment, str(tmp_path))
    assert program is not None and (program.kind, program.source) == ("reference", str(ROOT))
    assert fork_server.recognize_program(["python", *worker[1:]], environment, str(tmp_path)) is None
    assert fork_server.recognize_program([*worker[:-1], str(tmp_path)], environment, str(tmp_path)) is None
    predict = fork_server.recognize_program([*TOOLKIT, "predict", "x"], {"PYTHONPATH": "a:b"}, str(tmp_path))
    assert predict is not None and predict.kind == "computing command"
    assert list(predict.import_path) == [str(tmp_path), "a", "b"]
    assert fork_server.recognize_program([*TOOLKIT, "predict", "--help"], {}, str(tmp_path)) is None
    assert (
        fork_server.recognize_program([sys.executable, "-W", "ignore", "-m", "toolkit", "doctor"], {}, str(tmp_path))
        is None
    )
    (tmp_path / "sitecustomize.py").touch()
    assert fork_server.recognize_program([*TOOLKIT, "doctor"], {"PYTHONPATH": str(tmp_path)}, "/") is None
    assert fork_server.recognize_program(worker, {"PYTHONPATH": str(tmp_path)}, "/") is None


def test_another_environment_has_another_template():
    usual = {"environment": {"OMP_NUM_THREADS": "1", "TMPDIR": "a"}}
    for other, is_shared in (({"TMPDIR": "b", "TOOLKIT_CACHE": "c"}, True), ({"OMP_NUM_THREADS": "7"}, False)):
        changed = {"environment": {**usual["environment"], **other}}
        assert (fork_server._settings(changed) == fork_server._settings(usual)) is is_shared


@pytest.mark.new_interpreter
def test_a_test_that_asks_for_new_interpreters_has_them(processes):
    subprocess.run([*TOOLKIT, "recipe", "list"], cwd=ROOT, capture_output=True, check=True)
    assert [process._status for process in processes] == [None]


def test_a_forked_process_can_be_found_by_its_temporary_directory(tmp_path):
    command = [*TOOLKIT, "recipe", "new", "/dev/stdin"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while processes_of(tmp_path) != [process.pid]:
            assert process._status is not None and process.poll() is None
    assert processes_of(tmp_path) == []
