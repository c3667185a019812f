"""Test that a forked program behaves like a program in a new interpreter, and leaves nothing behind."""

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
    """Return the processes that the test has started, in the order of their start."""
    started_processes: list[subprocess.Popen] = []

    class RecordedPopen(fork_server.ForkingPopen):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            started_processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", RecordedPopen)
    scratch._start_janitor()  # the first gate of a process starts it once
    started_processes.clear()
    return started_processes


@pytest.fixture
def without_server(monkeypatch):
    """Return a function after which programs start in new interpreters."""
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


def test_a_forked_gate_writes_the_same_as_a_gate_with_new_interpreters(tmp_path, processes, without_server):
    interpreters = workers_of(reformer_request(TINY_REFORMER))
    jobs = [written_job(tmp_path / str(number)) for number in range(3)]
    for job in jobs[:2]:
        run_workers([job], quiet(), interpreters)
    assert [process._status is not None for process in processes] == [True] * 6
    without_server()
    run_workers([jobs[2]], quiet(), interpreters)
    assert [process._status is not None for process in processes[6:]] == [False] * 3
    *forked_results, new_interpreter_results = map(results_of, jobs)
    assert len(new_interpreter_results) > 2 and forked_results == [new_interpreter_results, new_interpreter_results]


def test_a_forked_run_writes_the_same_as_a_run_with_a_new_interpreter(tmp_path, without_server):
    recipe = write_recipes(tmp_path)[0]
    runs = {}
    for name in ("forked", "started"):
        if name == "started":
            without_server()
        arguments = [
            "finetune",
            recipe,
            f"train.output_dir={tmp_path / name}",
            "train.max_steps=8",
            "--skip-parity",
            "x",
        ]
        runs[name] = subprocess.run([*TOOLKIT, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert runs["forked"].returncode == runs["started"].returncode == 0, runs
    lines = [run.stdout.replace(str(tmp_path / name), "RUN").splitlines() for name, run in runs.items()]
    assert all(
        first_line == second_line
        for first_line, second_line in zip(*lines, strict=True)
        if not first_line.startswith("trained ")
    )
    assert runs["forked"].stderr == runs["started"].stderr
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in runs]
    assert weights[0] == weights[1]


def test_a_forked_worker_that_is_killed_is_reported_and_ends_the_others(tmp_path, processes, monkeypatch):
    class KillFirstPopen(subprocess.Popen):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            if len(processes) == 1:
                os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(subprocess, "Popen", KillFirstPopen)
    with pytest.raises(Inconclusive, match="the reference could not run: it was killed"):
        run_workers([written_job(tmp_path / "job")], quiet(), workers_of(reformer_request(TINY_REFORMER)))
    # The comparator may have ended earlier, because the port's end of their pipe was closed.
    assert [process.returncode for process in processes][:2] == [-signal.SIGKILL] * 2
    assert processes[2].returncode in (0, -signal.SIGKILL)
    assert not any(Path(f"/proc/{process.pid}").exists() for process in processes)


def test_a_forked_command_has_its_own_source_tree_streams_folder_and_environment(tmp_path):
    source = copied_source(
        tmp_path / "copy", "toolkit/cli.py", ('@recipe.command("list")', '@recipe.command("enumerate")')
    )
    (tmp_path / "elsewhere").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "70"}
    for command, message in (("enumerate", f"error: {source}/recipes: holds no recipes"), ("list", "No such command")):
        with open(tmp_path / "log", "w") as log:
            command_line = [*TOOLKIT, "recipe", command]
            result = subprocess.run(command_line, cwd=tmp_path / "elsewhere", env=environment, stdout=log, stderr=log)
        assert result.returncode == 2 and message in (tmp_path / "log").read_text()


def test_a_program_is_recognized_only_if_a_fork_behaves_equally(tmp_path):
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
    for other_variables, is_shared in (
        ({"TMPDIR": "b", "TOOLKIT_CACHE": "c"}, True),
        ({"OMP_NUM_THREADS": "7"}, False),
    ):
        changed_request = {"environment": {**usual["environment"], **other_variables}}
        assert (fork_server._settings(changed_request) == fork_server._settings(usual)) is is_shared


@pytest.mark.new_interpreter
def test_a_marked_test_gets_new_interpreters(processes):
    subprocess.run([*TOOLKIT, "recipe", "list"], cwd=ROOT, capture_output=True, check=True)
    assert [process._status for process in processes] == [None]


def test_a_forked_process_can_be_found_by_its_temporary_directory(tmp_path):
    command = [*TOOLKIT, "recipe", "new", "/dev/stdin"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while processes_of(tmp_path) != [process.pid]:
            assert process._status is not None and process.poll() is None
    assert processes_of(tmp_path) == []
