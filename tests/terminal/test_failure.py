"""Test the output of unexpected errors, of a full standard output, of Ctrl-C, and of too little memory."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import paddle
import pytest
from gates import copied_source, toolkit_in
from paddle.autograd import PyLayer
from test_train import recipe_file  # noqa: F401 - a recipe and its data

from toolkit import cli
from toolkit.errors import Inconclusive, ParityDrift, ToolkitError, UserError
from toolkit.files.ownership import LEDGER
from toolkit.machine.interruption import EXIT_STATUSES
from toolkit.recipe import load
from toolkit.terminal.failure import UNFORESEEN, describe
from toolkit.training.ranks import LOST_PROCESS_STATUS

ROOT = Path(__file__).parents[2]
TOOLKIT = [sys.executable, "-m", "toolkit"]
SHOW = ["recipe", "show", "recipes/reformer_cls.yaml"]


def run(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*TOOLKIT, *map(str, arguments)], **{"stdout": subprocess.PIPE, **options}, stderr=subprocess.PIPE, text=True,
        cwd=ROOT, check=False,
    )  # fmt: skip


@pytest.fixture
def fail(monkeypatch, capsys, tmp_path):
    """Return a function that makes a command raise an error and returns exit status and stderr."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(problem: BaseException, *options: str) -> tuple[int, str]:
        def raises(*_):
            raise problem

        monkeypatch.setattr(load, "load_recipe", raises)
        with pytest.raises(SystemExit) as exit_info:
            cli.main([*options, "recipe", "show", "x"])
        return exit_info.value.code, capsys.readouterr().err

    return fail


@pytest.mark.parametrize(
    ("problem", "expected_error"),
    [
        (ValueError("a\nb"), "ValueError: a"),
        (KeyError("vocab"), "KeyError: 'vocab'"),
        (AssertionError(), "AssertionError"),
        (OSError(28, "No space left on device", "/data/x"), "/data/x: No space left on device"),
        (PermissionError(13, "Permission denied", "/data/x"), "/data/x: Permission denied"),
        (OSError(30, "Read-only file system"), "Read-only file system"),
        (MemoryError(), "out of memory; lower train.batch_size"),
        (RuntimeError("libx.so: failed to map segment from shared object)"), "out of memory; lower train.batch_size"),
        (
            ImportError("libx.so: failed to map segment from shared object: Operation not permitted"),
            "ImportError: libx.so: failed to map",
        ),
        (RuntimeError("\n---\nC++ Traceback\n---\nError Message Summary:\n---\nFatal: no"), "RuntimeError: Fatal: no"),
        (RuntimeError("\x1b[31mred"), r"RuntimeError: \x1b[31mred"),
        (RecursionError("maximum recursion depth exceeded"), "RecursionError: maximum"),
    ],
)  # fmt: skip
def test_an_unexpected_error_is_one_line_that_names_the_traceback_file(fail, problem, expected_error):
    status, err = fail(problem)
    assert status == UNFORESEEN and err.startswith(f"error: {expected_error}") and err.count("\n") == 1
    (traceback_file,) = re.findall(r"; the traceback is in (\S+)\n", err)
    assert "Traceback (most recent call last)" in Path(traceback_file).read_text()


def test_an_unexpected_error_has_a_unique_exit_status():
    other_statuses = {
        0,
        ToolkitError.exit_status,
        UserError.exit_status,
        ParityDrift.exit_status,
        Inconclusive.exit_status,
    }
    assert UNFORESEEN not in {*other_statuses, LOST_PROCESS_STATUS, *EXIT_STATUSES}


def test_debug_prints_the_traceback_instead_of_the_line(fail):
    status, err = fail(ValueError("a"), "--debug")
    assert status == UNFORESEEN and err.startswith("Traceback") and err.endswith("ValueError: a\n")


def test_a_traceback_that_cannot_be_saved_is_reported(fail, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/no such folder")
    status, err = fail(ValueError("a"))
    assert status == UNFORESEEN and err == (
        "error: ValueError: a; the traceback could not be written (No such file or directory), --debug shows it\n"
    )


@pytest.mark.parametrize(
    ("make", "expected_message"),
    [
        (lambda: np.zeros(2**48), "out of memory when 2251799.8 GB were asked for; lower"),
        (lambda: bytearray(2**60), "out of memory; lower"),
    ],
)
def test_a_real_memory_error_is_described_with_advice(make, expected_message):
    with pytest.raises(MemoryError) as error_info:
        make()
    assert describe(error_info.value).startswith(expected_message)


def test_a_memory_error_of_paddle_is_described_with_advice():
    code = (
        "import resource, paddle\n"
        "from toolkit.terminal.failure import describe\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))\n"
        "try: paddle.ones([2**30, 4])\n"
        "except Exception as problem: print(describe(problem))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.startswith("out of memory when 17.2 GB were asked for; lower train.batch_size"), result


def _raises() -> None:
    raise LookupError("own words\nand more")


class _Raises(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        _raises()


class _AsksAgain(_Raises):
    """Like a backward pass that recomputes layers."""

    @staticmethod
    def backward(ctx, dy):
        recomputed_output = paddle.ones_like(dy)
        recomputed_output.stop_gradient = False
        with paddle.enable_grad():
            paddle.autograd.backward([_Raises.apply(recomputed_output)], [dy])
        return recomputed_output.grad


class _TakesAll(_Raises):
    @staticmethod
    def backward(ctx, dy):
        return np.ones(10**14)


def _with_hook(x):
    x = x * 2
    x.register_hook(lambda gradient: _raises())
    return x


LINE = _raises.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("apply", "expected_message"),
    [
        (_Raises.apply, f"LookupError: own words, in the backward at {__file__}:{LINE}"),
        (_AsksAgain.apply, f"LookupError: own words, in the backward at {__file__}:{LINE}"),
        (_with_hook, f"LookupError: own words, in the backward at {__file__}:{LINE}"),
        (_TakesAll.apply, "out of memory when 800444.5 GB were asked for; lower train.batch_size"),
    ],
)
def test_an_error_of_a_custom_backward_keeps_its_message_and_line(apply, expected_message):
    x = paddle.ones([2])
    x.stop_gradient = False
    with pytest.raises(OSError, match="External") as error_info:
        apply(x).sum().backward()
    assert describe(error_info.value).startswith(expected_message)


@pytest.mark.slow
def test_training_and_the_gate_name_the_line_of_a_failing_backward(recipe_file, tmp_path):  # noqa: F811
    line = "x, gain = ctx.saved_tensor()"
    source = copied_source(tmp_path / "source", "models/operations/ops.py", (line, f"1 / 0; {line}"))
    number = (source / "models/operations/ops.py").read_text().split("1 / 0; ")[0].count("\n") + 1
    expected_message = (
        f"ZeroDivisionError: division by zero, in the backward at {source}/models/operations/ops.py:{number}"
    )
    arguments = ["finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}"]
    result = toolkit_in(source, *arguments, "--skip-parity", "a test")
    assert result.returncode == UNFORESEEN and result.stderr.startswith(
        f"error: {expected_message}; the traceback is in "
    ), result.stderr
    result = toolkit_in(source, *arguments)
    assert (
        result.returncode == 3
        and result.stderr == f"error: parity gate: the candidate could not run: {expected_message}\n"
    )


def test_a_closed_pipe_ends_the_command_quietly():
    result = subprocess.run(
        ["bash", "-c", '"$@" | head -1', "bash", *TOOLKIT, *SHOW], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert (result.stdout, result.stderr) == ("task: classification\n", "")


def test_a_full_or_closed_standard_output_gives_no_traceback():
    with open("/dev/full", "w") as full:
        result = run(*SHOW, stdout=full)
    assert result.returncode == UNFORESEEN and result.stderr.startswith("error: No space left on device; ")
    assert result.stderr.count("\n") == 1
    result = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *TOOLKIT, *SHOW], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stderr == ""


@pytest.mark.parametrize("option", ["--temperature", "--top-p", "--repetition-penalty"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-nan"])
def test_invalid_numbers_of_generate_are_refused(option, value, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["generate", "x", f"{option}={value}"])
    assert exit_info.value.code == 2 and f"Invalid value for '{option}'" in capsys.readouterr().err


def test_the_number_of_beams_is_limited(capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["generate", "x", "--beams=1001"])
    assert exit_info.value.code == 2 and "Invalid value for '--beams'" in capsys.readouterr().err


# -- Ctrl-C ---------------------------------------------------------------------------------------------------------


def start(*arguments: object, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*TOOLKIT, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip


def wait_for(process: subprocess.Popen, folder: Path, pattern: str) -> None:
    end = time.monotonic() + 120
    while not list(folder.glob(pattern)) and time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def test_a_second_interrupt_ends_training_at_once_and_loses_no_checkpoint(recipe_file, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    settings = [f"train.output_dir={folder}", "train.max_steps=4000", "--skip-parity", "a test"]
    process = start("finetune", recipe_file, *settings)
    wait_for(process, folder, "checkpoints/step-*")
    process.send_signal(signal.SIGINT)
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:  # at any stage of the run
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, err = process.communicate()
    assert process.returncode == 130 and err.strip() == "interrupted"
    assert list(folder.glob("checkpoints/step-*/manifest.json"))


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_an_interrupt_at_exit_does_not_change_the_exit_status(is_interrupted):
    """Interrupt the exit, where Python has no handler and Paddle's destructors take some time."""
    code = (
        "import ctypes, os, signal, sys, time\n"
        "from toolkit.machine import interruption\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.__cxa_atexit(ctypes.cast(libc['raise'], ctypes.c_void_p), ctypes.c_void_p(signal.SIGINT), None)\n"
        "interruption.begin_handling()\n"
        "try:\n"
        f"    {is_interrupted} and (os.kill(os.getpid(), signal.SIGINT), time.sleep(60))\n"
        "except KeyboardInterrupt: pass\n"
        "interruption.end_process(130 if interruption.has_signal() else 7)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60)
    assert result.returncode == (130 if is_interrupted else 7)


@pytest.mark.slow
def test_a_second_interrupt_ends_the_gate_at_once(recipe_file, tmp_path):  # noqa: F811
    (scratch := tmp_path / "scratch").mkdir()
    process = start("finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}", TMPDIR=str(scratch))
    wait_for(process, scratch, "parity-*/candidate.log")
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, err = process.communicate()
    assert process.returncode == 130 and err.strip() == "interrupted"
    assert {path.name for path in (tmp_path / "run").rglob("*")} <= {LEDGER, ".lock"}


# -- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_too_little_memory_for_a_batch_is_one_line(recipe_file, tmp_path):  # noqa: F811
    size = 4 * 2**30
    large = ["train.batch_size=4000", "train.max_steps=2", "model.config.feed_forward_size=100000"]
    result = run(
        "finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}", *large, "--skip-parity", "a test",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )  # fmt: skip
    assert result.returncode == UNFORESEEN and result.stderr.count("\n") == 1, result.stderr
    assert re.match(r"error: out of memory when [\d.]+ [GM]B were asked for; lower train.batch_size", result.stderr)


@pytest.mark.slow
def test_too_little_memory_for_the_gate_is_one_line(recipe_file, tmp_path):  # noqa: F811
    size = int(2.6 * 2**30)
    result = run(
        "finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}", "model.config.feed_forward_size=100000",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )  # fmt: skip
    assert result.returncode == 3 and result.stderr.count("\n") == 1, result.stderr
    assert re.match(r"error: parity gate: the \w+ could not run: out of memory.*; fewer examples", result.stderr)
    assert not (tmp_path / "run").exists()
