"""What a user sees of a failure that nobody foresaw, of a full standard output, of Ctrl-C, and of too little memory."""

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
    """Let a command raise what is given; gives exit status and stderr."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(problem: BaseException, *options: str) -> tuple[int, str]:
        def raises(*_):
            raise problem

        monkeypatch.setattr(load, "load_recipe", raises)
        with pytest.raises(SystemExit) as left:
            cli.main([*options, "recipe", "show", "x"])
        return left.value.code, capsys.readouterr().err

    return fail


@pytest.mark.parametrize(
    ("problem", "said"),
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
def test_what_nobody_foresaw_is_one_line_that_names_the_file_with_its_traceback(fail, problem, said):
    status, err = fail(problem)
    assert status == UNFORESEEN and err.startswith(f"error: {said}") and err.count("\n") == 1
    (kept,) = re.findall(r"; the traceback is in (\S+)\n", err)
    assert "Traceback (most recent call last)" in Path(kept).read_text()


def test_its_exit_status_is_that_of_nothing_else():
    others = {0, ToolkitError.exit_status, UserError.exit_status, ParityDrift.exit_status, Inconclusive.exit_status}
    assert UNFORESEEN not in {*others, LOST_PROCESS_STATUS, *EXIT_STATUSES}


def test_debug_shows_the_traceback_in_place_of_the_line(fail):
    status, err = fail(ValueError("a"), "--debug")
    assert status == UNFORESEEN and err.startswith("Traceback") and err.endswith("ValueError: a\n")


def test_a_traceback_that_cannot_be_kept_is_said(fail, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/no such folder")
    status, err = fail(ValueError("a"))
    assert status == UNFORESEEN and err == (
        "error: ValueError: a; the traceback could not be written (No such file or directory), --debug shows it\n"
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: np.zeros(2**48), "out of memory when 2251799.8 GB were asked for; lower"),
        (lambda: bytearray(2**60), "out of memory; lower"),
    ],
)
def test_a_real_want_of_memory_says_how_much_and_what_to_lower(make, said):
    with pytest.raises(MemoryError) as found:
        make()
    assert describe(found.value).startswith(said)


def test_paddle_without_memory_says_how_much_and_what_to_lower():
    code = (
        "import resource, paddle\n"
        "from toolkit.terminal.failure import describe\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))\n"
        "try: paddle.ones([2**30, 4])\n"
        "except Exception as problem: print(describe(problem))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.startswith("out of memory when 17.2 GB were asked for; lower train.batch_size"), done


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
    """As a backward that computes layers again."""

    @staticmethod
    def backward(ctx, dy):
        again = paddle.ones_like(dy)
        again.stop_gradient = False
        with paddle.enable_grad():
            paddle.autograd.backward([_Raises.apply(again)], [dy])
        return again.grad


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
    ("apply", "said"),
    [
        (_Raises.apply, f"LookupError: own words, in the backward at {__file__}:{LINE}"),
        (_AsksAgain.apply, f"LookupError: own words, in the backward at {__file__}:{LINE}"),
        (_with_hook, f"LookupError: own words, in the backward at {__file__}:{LINE}"),
        (_TakesAll.apply, "out of memory when 800444.5 GB were asked for; lower train.batch_size"),
    ],
)
def test_what_a_layers_own_backward_raises_keeps_its_words_and_its_line(apply, said):
    x = paddle.ones([2])
    x.stop_gradient = False
    with pytest.raises(OSError, match="External") as raised:
        apply(x).sum().backward()
    assert describe(raised.value).startswith(said)


@pytest.mark.slow
def test_a_backward_that_fails_is_named_with_its_line_by_training_and_by_the_gate(recipe_file, tmp_path):  # noqa: F811
    line = "x, gain = ctx.saved_tensor()"
    source = copied_source(tmp_path / "source", "models/operations/ops.py", (line, f"1 / 0; {line}"))
    number = (source / "models/operations/ops.py").read_text().split("1 / 0; ")[0].count("\n") + 1
    said = f"ZeroDivisionError: division by zero, in the backward at {source}/models/operations/ops.py:{number}"
    asked = ["finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}"]
    done = toolkit_in(source, *asked, "--skip-parity", "a test")
    assert done.returncode == UNFORESEEN and done.stderr.startswith(f"error: {said}; the traceback is in "), done.stderr
    done = toolkit_in(source, *asked)
    assert done.returncode == 3 and done.stderr == f"error: parity gate: the candidate could not run: {said}\n"


def test_a_reader_that_stops_reading_ends_it_quietly():
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -1', "bash", *TOOLKIT, *SHOW], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert (done.stdout, done.stderr) == ("task: classification\n", "")


def test_a_full_or_closed_standard_output_is_no_traceback():
    with open("/dev/full", "w") as full:
        done = run(*SHOW, stdout=full)
    assert done.returncode == UNFORESEEN and done.stderr.startswith("error: No space left on device; ")
    assert done.stderr.count("\n") == 1
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *TOOLKIT, *SHOW], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stderr == ""


@pytest.mark.parametrize("option", ["--temperature", "--top-p", "--repetition-penalty"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-nan"])
def test_no_number_is_no_setting_of_generate(option, value, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["generate", "x", f"{option}={value}"])
    assert left.value.code == 2 and f"Invalid value for '{option}'" in capsys.readouterr().err


def test_the_number_of_beams_is_limited(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["generate", "x", "--beams=1001"])
    assert left.value.code == 2 and "Invalid value for '--beams'" in capsys.readouterr().err


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
    while process.poll() is None and time.monotonic() < end:  # whatever it is doing by then
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, err = process.communicate()
    assert process.returncode == 130 and err.strip() == "interrupted"
    assert list(folder.glob("checkpoints/step-*/manifest.json"))


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_interrupt_while_libraries_are_taken_down_changes_no_exit_status(interrupted):
    """There Python has no handler any more; Paddle's destructors take a while."""
    code = (
        "import ctypes, os, signal, sys, time\n"
        "from toolkit.machine import interruption\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.__cxa_atexit(ctypes.cast(libc['raise'], ctypes.c_void_p), ctypes.c_void_p(signal.SIGINT), None)\n"
        "interruption.begin_handling()\n"
        "try:\n"
        f"    {interrupted} and (os.kill(os.getpid(), signal.SIGINT), time.sleep(60))\n"
        "except KeyboardInterrupt: pass\n"
        "interruption.end_process(130 if interruption.has_signal() else 7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60)
    assert done.returncode == (130 if interrupted else 7)


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
    done = run(
        "finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}", *large, "--skip-parity", "a test",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )  # fmt: skip
    assert done.returncode == UNFORESEEN and done.stderr.count("\n") == 1, done.stderr
    assert re.match(r"error: out of memory when [\d.]+ [GM]B were asked for; lower train.batch_size", done.stderr)


@pytest.mark.slow
def test_too_little_memory_for_the_gate_is_one_line(recipe_file, tmp_path):  # noqa: F811
    size = int(2.6 * 2**30)
    done = run(
        "finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}", "model.config.feed_forward_size=100000",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )  # fmt: skip
    assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
    assert re.match(r"error: parity gate: the \w+ could not run: out of memory.*; fewer examples", done.stderr)
    assert not (tmp_path / "run").exists()
