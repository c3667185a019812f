"""Test the two processes of a gate: a failure of one ends the other, and the failed process is named."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gates import quiet
from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.exchange import files
from toolkit.parity.processes import interpreter, launch, processes
from toolkit.parity.processes.processes import run_workers


def write_program(path: Path, body: str) -> str:
    """Write a script that stands in for a side's Python, and return its path."""
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_line_shows_the_progress_of_several_jobs(tmp_path):
    jobs = [tmp_path / "0", tmp_path / "1"]
    body = "import pathlib, sys, time\nfor job in sys.argv[6:]:\n time.sleep(1)\n (pathlib.Path(job, {!r})).touch()"
    for job in jobs:
        for side in ("reference", "candidate"):
            (job / side).mkdir(parents=True)
    interpreters = {
        side: write_program(tmp_path / side, body.format(f"{side}/result.json")) for side in ("reference", "candidate")
    }
    out = io.StringIO()
    run_workers(jobs, Console(file=out, force_terminal=True, width=120), interpreters)
    assert "reference and candidate running, 0 of 2 done, " in out.getvalue()
    assert "running, 1 of 2 done, " in out.getvalue()


@pytest.mark.parametrize("failing", ["reference", "candidate"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit('no disk is left')", "exit status 1; no disk is left"),
        ("", "exit status 0;"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed, as a system does that has no memory left"),
    ],
)
def test_a_side_that_ends_without_a_result_ends_the_other_at_once(failing, body, message, tmp_path):
    """Otherwise the other side would wait for its files forever."""
    waiting = {"reference": "candidate", "candidate": "reference"}[failing]
    finished_file = tmp_path / "finished"
    interpreters = {
        side: write_program(tmp_path / side, content)
        for side, content in (
            (failing, body),
            (waiting, f"import pathlib, time; time.sleep(30); pathlib.Path({str(finished_file)!r}).touch()"),
        )
    }
    (tmp_path / "job").mkdir()
    with pytest.raises(Inconclusive) as raised_error:
        run_workers([tmp_path / "job"], Console(file=io.StringIO()), interpreters)
    assert str(raised_error.value).startswith(f"parity gate: the {failing} could not run: {message}")
    assert not finished_file.exists()


#: A worker like :mod:`toolkit.parity.processes.worker`, with another task.
WORKER = """
import pathlib, sys, time
from toolkit.parity.exchange import files
from toolkit.parity.processes import worker
def main(task, folder):
    {body}
    files.write_json(files.result_path(folder, {side!r}, task), {{}})
worker.run({side!r}, main, sys.argv[5], sys.argv[6:])
"""


def write_workers(folder: Path, **bodies: str) -> dict[str, str]:
    """Create the folders of a job's sides, and return a stand-in for each side's Python."""
    for side in bodies:
        (folder / "job" / side).mkdir(parents=True)
    return {side: write_program(folder / side, WORKER.format(body=body, side=side)) for side, body in bodies.items()}


@pytest.mark.parametrize("task", ["result", "forced_input"])
@pytest.mark.parametrize("failing", ["reference", "candidate"])
def test_a_side_that_fails_writes_its_error_and_is_named(failing, task, tmp_path):
    waiting = {"reference": "candidate", "candidate": "reference"}[failing]
    bodies = {failing: "raise ValueError('no such layer')", waiting: "time.sleep(30)"}
    interpreters = write_workers(tmp_path, **{side: bodies[side] for side in ("reference", "candidate")})
    with pytest.raises(Inconclusive) as raised_error:
        run_workers([tmp_path / "job"], Console(file=io.StringIO()), interpreters, task=task)
    assert str(raised_error.value) == f"parity gate: the {failing} could not run: ValueError: no such layer"
    assert (tmp_path / "job" / failing / f"{task}.failed").read_text() == "ValueError: no such layer"
    assert list((tmp_path / "job" / waiting).iterdir()) == []


@pytest.mark.parametrize("task", ["result", "forced_input"])
def test_a_port_that_waits_for_a_failed_reference_is_not_blamed(task, tmp_path):
    interpreters = write_workers(
        tmp_path,
        reference="time.sleep(1); raise ValueError('no such layer')",
        candidate=f"files.wait_for_reference(folder, 'order.json', {task!r})",
    )
    with pytest.raises(Inconclusive) as raised_error:
        run_workers([tmp_path / "job"], Console(file=io.StringIO()), interpreters, task=task)
    assert str(raised_error.value) == "parity gate: the reference could not run: ValueError: no such layer"


def test_a_failed_follow_up_of_one_side_keeps_the_measurements_of_both(tmp_path):
    """The measurements of the gate stay, and no worker treats the failure as a failure of the gate itself."""
    interpreters = write_workers(tmp_path, reference="raise ValueError('no memory is left')", candidate="pass")
    job = tmp_path / "job"
    for side in ("reference", "candidate"):
        files.write_json(files.result_path(job, side), {})
    with pytest.raises(Inconclusive, match="the reference could not run: ValueError: no memory is left"):
        run_workers([job], Console(file=io.StringIO()), {"reference": interpreters["reference"]}, task="remeasure")
    assert sorted(path.name for path in (job / "reference").iterdir()) == ["remeasure.failed", "result.json"]
    run_workers([job], Console(file=io.StringIO()), {"candidate": interpreters["candidate"]}, task="attribution")
    assert sorted(path.name for path in (job / "candidate").iterdir()) == ["attribution.json", "result.json"]


@pytest.mark.parametrize("first", ["reference", "candidate"])
def test_the_side_that_failed_first_is_named(first, tmp_path):
    """The second side may have failed because the first did not write its files."""
    for side in ("reference", "candidate"):
        (tmp_path / side).mkdir()
        failure = files.failure_path(tmp_path, side)
        failure.write_text("words")
        os.utime(failure, (0, 1.0 if side == first else 2.0))
    assert processes._without_result(tmp_path, ("reference", "candidate"), [], files.RESULT)[0] == first
    files.failure_path(tmp_path, first).unlink()  # it was killed and could not write the file
    assert processes._without_result(tmp_path, ("reference", "candidate"), [first], files.RESULT)[0] == first


STRAY = ("random", "queue", "numpy", "datasets", "json", "torch", "safetensors", "models", "toolkit", "runpy")


#: Sends an invalid message, waits until the comparator has reported it, and fails like a port with a broken pipe.
BREAK_PIPE = """
import os, pathlib, time
os.write(int(os.environ["TOOLKIT_PARITY_PIPE"]), b"nothing\\n")
while not pathlib.Path({compared!r}).exists(): time.sleep(0.01)
pathlib.Path({failed!r}).write_text("port.py:1: Broken pipe")
os._exit(2)
"""


def test_a_port_whose_pipe_breaks_is_not_blamed(tmp_path, monkeypatch):
    """Test the case that the port seems to stop before the comparator."""
    original = processes._has_stopped
    monkeypatch.setattr(
        processes, "_has_stopped", lambda side, *paths: side != processes.COMPARATOR and original(side, *paths)
    )
    (tmp_path / "candidate").mkdir()
    comparator_failure, port_failure = (
        str(files.failure_path(tmp_path, side, files.RESULT)) for side in ("comparator", "candidate")
    )
    sides = {
        "candidate": write_program(
            tmp_path / "port", BREAK_PIPE.format(compared=comparator_failure, failed=port_failure)
        ),
        "reference": write_program(tmp_path / "other", "import time\ntime.sleep(60)"),
    }
    with pytest.raises(Inconclusive, match="what the port computed could not be measured: "):
        run_workers([tmp_path], quiet(), sides)


@pytest.mark.parametrize(
    "path",
    [None, pytest.param("", marks=pytest.mark.slow), ":/nowhere"],
    ids=["no PYTHONPATH", "an empty one", "one with an empty place"],
)
def test_modules_in_the_current_folder_are_not_run(path, tmp_path, monkeypatch):
    """`python -m` would import them instead of Python's own modules."""
    for name in STRAY:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current folder was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    module_names = ["random", "queue", "numpy", "json", "safetensors", "models.families", "toolkit.errors"]
    for module in ("toolkit.parity.reference", "toolkit.parity.candidate", "toolkit.parity.reference.kernel_server"):
        run_code = (
            f"import runpy; runpy.run_module = lambda name, **_: [__import__(n) for n in {module_names!r} + [name]]"
        )
        command = launch.module_command(sys.executable, module)
        command[2] = command[2].replace("import runpy", run_code)
        process = subprocess.run(command, env=launch.worker_environment(), capture_output=True, text=True, check=False)
        assert (process.returncode, process.stderr) == (0, ""), module
    assert interpreter._query_interpreter(sys.executable)["versions"]["python"]


WRITE_UNTIL_KILLED = """
import os, pathlib, sys, time
from toolkit.machine.scratch import child_process, scratch_folder
with scratch_folder("killed-", pathlib.Path(sys.argv[1])) as folder:
    worker = "import pathlib, subprocess, sys; subprocess.Popen(['sleep', '60']); i = 0" + chr(10)
    worker += "apart = subprocess.Popen(['sleep', '60'], start_new_session=True)" + chr(10)
    worker += "pathlib.Path(sys.argv[1], 'apart').write_text(str(apart.pid))" + chr(10)
    worker += "while True: i += 1; pathlib.Path(sys.argv[1], str(i % 50)).write_text('x' * 4096)"
    with child_process([sys.executable, "-c", worker, str(folder)]) as process:
        while not (folder / "9").exists():
            time.sleep(0.01)
        print(process.pid, (folder / "apart").read_text(), flush=True)
        time.sleep(60)
"""


def find_members(group: int) -> list[int]:
    """Return the running processes of a group."""
    process_ids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # the process has ended meanwhile
            continue
        if int(pgrp) == group and state != "Z":
            process_ids.append(int(path.parent.name))
    return process_ids


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc, which is not here")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_gate_leaves_no_process_and_no_folder(signal_number, tmp_path):
    """The worker writes into the folder all the time, and has two children, one of them in another session."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    group, other_group = map(int, process.stdout.readline().split())
    assert len(find_members(group)) == 2 and find_members(other_group) == [other_group]
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal_number)
    process.wait()
    end = time.monotonic() + 10
    while (find_members(group) or find_members(other_group) or list(tmp_path.iterdir())) and time.monotonic() < end:
        time.sleep(0.02)
    assert not find_members(group) and not find_members(other_group)
    assert not list(tmp_path.iterdir())
