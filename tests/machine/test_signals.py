"""Test Ctrl-C, SIGTERM and SIGHUP at every moment of a command: it saves, prints a line, and the run can resume."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kills import (
    HANGS,
    GatedRun,
    assert_same_bits,
    assert_stopped,
    long_recipe,
    of_python_alone,
    stop_at_random,
    write_recipes,
)
from soak import some, times
from test_trainer import assert_same_weights, make_finetuner, read_metrics_without_time, read_weights

from toolkit.machine import interruption
from toolkit.machine.interruption import ENDING_SIGNALS, GRACE_SECONDS, SignalInterrupt
from toolkit.run_folder.checkpoint import OPTIMIZER
from toolkit.run_folder.tracking import MetricsFile

ROOT = Path(__file__).resolve().parents[2]
SEED = 20261125


def start_program(code: str, **options) -> subprocess.Popen:
    """Start a program of ours, which prints a line when it is ready for signals."""
    imports = "import ctypes, os, signal, sys, time\nfrom toolkit.machine import interruption\n"
    command = [sys.executable, "-c", imports + code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **{**pipes, **options})


def end_with_signals(process: subprocess.Popen, *signals: int, pause: float = 0.0) -> tuple[int, str]:
    """Send signals to a program after its first line; return its exit status and standard error."""
    assert process.stdout.readline() == "ready\n"
    for number in signals:
        process.send_signal(number)
        if pause:  # otherwise send the signals without a pause
            time.sleep(pause)
    _, errors = process.communicate(timeout=HANGS)
    return process.returncode, errors


def end_all_with_signals(*programs: tuple[subprocess.Popen, list[int], float]) -> list[tuple[int, str]]:
    """Send signals to several programs at the same time, since they mostly wait.

    Each program is given with its signals and the seconds between them, as for :func:`end_with_signals`.
    """
    with ThreadPoolExecutor(len(programs)) as pool:
        return list(
            pool.map(
                lambda program_signals: end_with_signals(
                    program_signals[0], *program_signals[1], pause=program_signals[2]
                ),
                programs,
            )
        )


#: A command that waits in the program's own frame.
WAITING = """
from toolkit import cli
from toolkit.recipe import load
def wait(*_):
    print("ready", flush=True)
    {wait}
load.load_recipe = wait
sys.argv = ["toolkit", "recipe", "show", "x"]
cli.main()
"""
WAITS_BY_ACTIVITY = {
    "sleeps": "time.sleep(60)",
    "loses it": "\n    while True:\n        try: time.sleep(60)\n        except BaseException: pass",
    "takes it for damage": (
        "\n    try: time.sleep(60)\n    except BaseException:\n        from toolkit.errors import UserError\n"
        "        raise UserError('a.csv cannot be read')"
    ),
    "is in a library": "ctypes.CDLL(None).sleep(60), [ctypes.CDLL(None).sleep(60) for _ in range(9)]",
    "has a thread": "import threading; threading.Thread(target=time.sleep, args=[60]).start(); time.sleep(60)",
}


@pytest.fixture(scope="module")
def results_by_signal() -> dict[tuple[str, int], tuple[int, str]]:
    """Return the exit status and errors of each command by its activity and signal.

    All commands run at the same time, since they mostly wait for the thread that ends them.
    """
    programs = {
        (activity, number): start_program(WAITING.format(wait=WAITS_BY_ACTIVITY[activity]))
        for activity in WAITS_BY_ACTIVITY
        for number in ENDING_SIGNALS
    }
    for (_, number), process in programs.items():
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    errors = {case: process.communicate(timeout=HANGS)[1] for case, process in programs.items()}
    return {case: (process.returncode, errors[case]) for case, process in programs.items()}


@pytest.mark.parametrize("number", ENDING_SIGNALS)
@pytest.mark.parametrize("activity", WAITS_BY_ACTIVITY)
def test_a_command_ends_with_a_line_and_the_signals_status_in_any_activity(activity, number, results_by_signal):
    name = signal.Signals(number).name
    line = "interrupted\n" if number == signal.SIGINT else f"interrupted by {name}\n"
    assert results_by_signal[activity, number] == (128 + number, line)


def test_two_signals_at_once_count_as_one_and_a_later_signal_ends_it():
    """Test repeated signals: a launcher forwards signals that all have got, and a closed terminal sends two."""
    ready = '    print("ready", flush=True)\n    {wait}'
    tidies = "    finally: time.sleep(1.5); print('tidy', file=sys.stderr)"
    assert ready in WAITING
    # It is ready as soon as it has something to clean up, and not before.
    waiting = WAITING.replace(ready, f'    try: print("ready", flush=True); time.sleep(60)\n{tidies}')
    terminations, hangups = [signal.SIGTERM] * 2, [signal.SIGHUP] * 2
    at_once, by_terminal, later = end_all_with_signals(
        (start_program(waiting), terminations, 0.0),
        (start_program(waiting), hangups, 0.7),
        (start_program(waiting), terminations, 0.7),
    )
    assert at_once == (143, "tidy\ninterrupted by SIGTERM\n")
    assert by_terminal == (129, "tidy\ninterrupted by SIGHUP\n")
    assert later == (143, "interrupted by SIGTERM\n")


def test_a_signal_waits_for_saving_and_a_second_signal_does_not():
    code = (
        "interruption.begin_handling()\n"
        "with interruption.note_signals():\n"
        "    print('ready', flush=True)\n"
        f"    while not interruption.has_signal(): time.sleep(0.01)\n    time.sleep({GRACE_SECONDS} + 1)\n"
        "sys.exit(7)\n"
    )
    one_signal, two_signals = [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]
    saved_result, interrupted_result = end_all_with_signals(
        (start_program(code), one_signal, 0.0), (start_program(code), two_signals, 0.7)
    )
    assert saved_result == (7, "") and interrupted_result == (143, "interrupted by SIGTERM\n")


def test_an_ignored_signal_stays_ignored():
    """Test ignored signals, as under nohup or in a background job of a script."""
    code = "interruption.begin_handling(); print('ready', flush=True); time.sleep(1); sys.exit(7)"
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    assert end_with_signals(start_program(code, **ignore), signal.SIGHUP) == (7, "")
    assert end_with_signals(start_program(code), signal.SIGHUP)[0] != 7


def test_a_signal_after_the_work_does_not_change_the_exit_status():
    code = (
        "interruption.begin_handling(); interruption.record_exit_status(7); "
        "print('ready', flush=True); time.sleep({}); sys.exit(7)"
    )
    # The second program does not reach its end.
    programs = (start_program(code.format(seconds)) for seconds in (1, 60))
    assert end_all_with_signals(*((process, [signal.SIGTERM], 0.0) for process in programs)) == [(7, ""), (7, "")]


def test_an_early_signal_is_handled_as_soon_as_possible():
    """Test a child of :func:`toolkit.machine.scratch.child_process`, which handles signals only after its imports."""
    begin = "try: interruption.begin_handling()\nexcept KeyboardInterrupt: print('it came')"
    second = f"from toolkit.machine import interruption\n{begin}"
    code = (
        "interruption.begin_handling()\n"
        "with interruption.block_signals():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        f"    os.execv(sys.executable, [sys.executable, '-c', {second!r}])\n"
    )
    assert start_program(code).communicate() == ("it came\n", "")


#: Sends a Ctrl-C to its own process when it imports a module.
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == {name!r}: os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    ("name", "expected_end"),
    [
        ("toolkit.machine", (-signal.SIGINT, "")),  # before our handler is installed
        ("toolkit.machine.interruption", (-signal.SIGINT, "")),
        ("toolkit.cli", (130, "interrupted\n")),
    ],
)
@pytest.mark.parametrize("command", [["-m", "toolkit"], ["-c", "from toolkit.__main__ import main; main()"]])
def test_a_ctrl_c_during_imports_leaves_no_traceback(name, expected_end, command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT.format(name=name))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    result = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == expected_end


def test_pythons_own_traceback_is_recognized():
    python = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 189, in _get_main\nKeyboardInterrupt\n'
    assert of_python_alone(python)
    assert not of_python_alone(python.replace("<frozen runpy>", f"{ROOT}/toolkit/__main__.py"))
    assert not of_python_alone(python.replace("KeyboardInterrupt", "OSError"))


def test_a_child_gets_no_signal_and_still_ends():
    code = (
        "from toolkit.machine.scratch import child_process\n"
        "interruption.begin_handling()\n"
        "with child_process([sys.executable, '-c', 'import time; time.sleep(60)']) as process:\n"
        "    for number in interruption.ENDING_SIGNALS: process.send_signal(number)\n"
        "    time.sleep(0.5)\n"
        "    assert process.poll() is None\n"
        "    print(process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = start_program(code)
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANGS) != 0 and not Path(f"/proc/{pid}").exists(), process.communicate()


@pytest.mark.parametrize("first", ["models", "paddle"])
def test_paddle_handles_no_signal_and_leaves_python_its_own(first):
    """Test any importer of Paddle, and any time at which its signal handlers are disabled."""
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: print('ours'))\n"
        f"import {first}\nimport models.operations.ops, paddle, paddlenlp.transformers, toolkit.training.trainer\n"
        "paddle.disable_signal_handler()\n"
        "(caught,) = [int(line.split()[1], 16) for line in open('/proc/self/status') if line.startswith('SigCgt')]\n"
        "caught = [one for one in signal.Signals if caught >> one - 1 & 1]\n"
        "assert signal.SIG_DFL not in map(signal.getsignal, caught), caught\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    process = start_program(code)
    out, errors = process.communicate()
    assert out == "ours\n" and process.returncode == 0, errors


# -- a closed terminal ----------------------------------------------------------------------------------------------


def close_terminal(command: list[str], wait, **options) -> tuple[int, list[str]]:
    """Start a command on its own terminal, close the terminal, and return the exit status and output."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(ROOT)
        os.execve(command[0], command, {**os.environ, **options})
    wait(terminal)
    os.close(terminal)
    end = time.monotonic() + HANGS
    while time.monotonic() < end:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("it hangs")


def test_printing_to_a_closed_terminal_is_not_an_error(tmp_path):
    marker_file = tmp_path / "said"
    code = (
        "import pathlib, sys, time\nfrom toolkit.machine import interruption\ninterruption.begin_handling()\n"
        "with interruption.note_signals():\n"
        "    print('ready', flush=True)\n"
        "    while not interruption.has_signal(): time.sleep(0.01)\n"
        f"    print('saved', flush=True); pathlib.Path({str(marker_file)!r}).write_text('saved')\n"
        "sys.exit(interruption.exit_status())\n"
    )
    status = close_terminal([sys.executable, "-c", code], lambda terminal: os.read(terminal, 10))
    assert status == 129 and marker_file.read_text() == "saved"


@pytest.mark.slow
def test_a_run_with_a_closed_terminal_has_saved_and_resumes_bit_for_bit(tmp_path):
    recipe = write_recipes(tmp_path)[0]
    whole_run, run = GatedRun(recipe, tmp_path / "whole", "--skip-parity", "x"), tmp_path / "run"
    whole_run.finish()
    arguments = ["finetune", str(recipe), f"train.output_dir={run}", "--skip-parity", "x"]

    def wait(terminal: int) -> None:
        while not list(run.glob("checkpoints/step-00000008")):
            os.set_blocking(terminal, False)
            with pytest.MonkeyPatch.context():
                try:
                    os.read(terminal, 4096)
                except BlockingIOError:
                    time.sleep(0.005)

    status = close_terminal([sys.executable, "-m", "toolkit", *arguments], wait)
    assert status == 129 and list(run.glob("checkpoints/step-*/manifest.json"))
    resumed_run = GatedRun(recipe, run, "--skip-parity", "x")
    resumed_run.finish()
    assert_same_bits(run, whole_run.folder)


# -- a validation that is left --------------------------------------------------------------------------------------


def signal_in_validation(trainer, step: int, batch: int) -> None:
    """Let a signal arrive in a batch of the validation after a step."""
    original_step, steps = trainer.prediction_step, []

    def prediction_step(*arguments, **options):
        if trainer.is_in_train and trainer.state.global_step == step:
            steps.append(step)
            if len(steps) == batch:
                signal.raise_signal(signal.SIGTERM)
        assert len(steps) <= batch, "it goes on"
        return original_step(*arguments, **options)

    trainer.prediction_step = prediction_step


@pytest.mark.parametrize("settings", [{}, {"early_stopping_patience": 1, "learning_rate": 1e-9}], ids=["", "patience"])
@pytest.mark.parametrize(("step", "batch"), [(7, 1), (14, 2), (30, 1)])
def test_an_interrupted_validation_stops_between_batches_and_is_repeated(tmp_path, step, batch, settings):
    whole_run = make_finetuner(tmp_path / "whole", **settings)
    whole_run.fit()
    if step > whole_run.state.global_step:
        pytest.skip("it has stopped before")
    first = make_finetuner(tmp_path / "run", **settings)
    signal_in_validation(first, step, batch)
    with pytest.raises(SignalInterrupt):
        first.fit()
    last = first.checkpoints.newest(pytest.fail)
    assert last is not None and last.name == f"step-{step:08d}"
    second = make_finetuner(tmp_path / "run", last_step=step, **settings)
    second.fit(last)
    assert interruption._state.raises, "a signal would be lost from here on"
    assert read_metrics_without_time(tmp_path / "run") == read_metrics_without_time(tmp_path / "whole")
    assert second.best == whole_run.best
    for trainer in (whole_run, second):
        trainer.use_best_weights()
    assert_same_weights(read_weights(whole_run), read_weights(second))


def test_a_repeated_validation_keeps_the_optimizer_state_with_the_best_weights(tmp_path):
    first = make_finetuner(tmp_path)
    signal_in_validation(first, 7, 1)
    with pytest.raises(SignalInterrupt):
        first.fit()
    last = first.checkpoints.newest(pytest.fail)
    second = make_finetuner(tmp_path, last_step=7)
    second.take_up(last)
    assert (second.checkpoints.best(7) / OPTIMIZER).read_bytes() == (last / OPTIMIZER).read_bytes()


def test_a_repeated_validation_replaces_its_row(tmp_path):
    """Test a run that was killed between a validation and the next checkpoint."""
    metrics = MetricsFile(tmp_path)
    rows = [{"step": step, "split": split_name} for step in (1, 2) for split_name in ("train", "validation")]
    for row in rows:
        metrics.write(row)
    assert MetricsFile(tmp_path, 2)._kept == rows
    assert MetricsFile(tmp_path, 2, repeats_validation=True)._kept == rows[:3]


def test_the_computation_of_metrics_is_interrupted_at_once(tmp_path, monkeypatch):
    """Stop the computation of the metrics, a long computation in Python without batches."""
    trainer = make_finetuner(tmp_path)
    plain = trainer.task.compute_metrics

    def compute_metrics(*arguments):
        if trainer.is_in_train and trainer.state.global_step == 14:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("it goes on")
        return plain(*arguments)

    monkeypatch.setattr(trainer.task, "compute_metrics", compute_metrics)  # all trainers of these tests share it
    with pytest.raises(SignalInterrupt):
        trainer.fit()
    assert trainer.checkpoints.last_step() == 14


# -- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_stopped_at_random_moments_resumes_bit_for_bit(tmp_path):
    stopped_runs = stop_at_random(times(4, 40), signal.SIGTERM, SEED, tmp_path)
    assert len({stopped_run.doing for stopped_run in stopped_runs}) > times(2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGHUP])
def test_runs_resume_after_other_signals(signal_number, tmp_path):
    assert stop_at_random(
        times(1, 9), signal_number, SEED + signal_number, tmp_path, "--skip-parity", "asked for its end"
    )


@pytest.mark.slow
@pytest.mark.parametrize("doing", some(["training", "start", "test evaluation", "validation"], 4))
def test_runs_with_several_processes_resume(doing, tmp_path):
    """Test several processes, to which the command forwards the signal."""
    options = ("--skip-parity", "x", "--processes", "2")
    recipe = long_recipe(tmp_path)
    whole_run, run = (GatedRun(recipe, tmp_path / name, *options) for name in ("whole", "run"))
    whole_run.finish()
    stopped_run = run.stop(doing, 0.0 if doing == "test evaluation" else 0.3, signal.SIGTERM)  # which is soon over
    assert_stopped(stopped_run, signal.SIGTERM)
    assert stopped_run.status == 143
    run.finish()
    assert_same_bits(run.folder, whole_run.folder)
