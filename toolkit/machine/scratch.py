"""Temporary folders and child processes that do not outlive this one, however it ends.

A killed process cannot tidy up. So a small separate process, the janitor, holds the other end of a pipe. It is told of
each folder and each child when it appears and when it is gone. When the pipe closes, it kills the children and removes
the folders that are left. It has its own session, so it gets neither Ctrl-C nor a signal to the whole group.

Run as a script, this file is the janitor; so it imports nothing but the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ != "__main__":  # the janitor has nothing of the toolkit's
    from toolkit.machine import interruption

#: Seconds for which the janitor tries to remove a folder: a process that it has killed may still be writing there.
PATIENCE = 5.0


@contextlib.contextmanager
def scratch_folder(prefix: str, beside: Path | None = None) -> Iterator[Path]:
    """Make a folder that is removed after the ``with`` block, or when this process ends; ``beside`` others in a folder,
    else among the system's temporary files."""
    with contextlib.ExitStack() as kept:
        with interruption.hold_signals():
            folder = tempfile.mkdtemp(prefix=prefix, dir=beside)
            kept.enter_context(_watched("folder", folder))
            kept.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Path(folder)


def scratch_until_exit(prefix: str) -> Path:
    """Make a temporary folder that is removed when this process ends."""
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(scratch_folder(prefix))


@contextlib.contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Start a process that, with its own children, is killed after the ``with`` block, or when this process ends.

    Args:
        command, options: of :class:`subprocess.Popen`. The process gets its own session and none of the ending
            signals, which some systems send to all: only this process gets them, and decides what is to end.
    """
    with contextlib.ExitStack() as running:
        with interruption.hold_signals(), interruption.block_signals():
            process = subprocess.Popen(command, start_new_session=True, **options)
            running.enter_context(_watched("group", process.pid))
            running.callback(process.wait)
            running.callback(kill_group, process.pid)
        yield process


def kill_group(leader: int) -> None:
    """Kill a process that leads a group, and the rest of the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; macOS says so in another way
        os.killpg(leader, signal.SIGKILL)


@contextlib.contextmanager
def _watched(kind: str, what: str | int) -> Iterator[None]:
    _tell("+", kind, what)
    try:
        yield
    finally:
        _tell("-", kind, what)


def _tell(*words: str | int) -> None:
    try:
        pipe = _janitor().stdin
    except PermissionError:  # this user may not start Python: nothing tidies up if this process is killed
        return
    assert pipe is not None
    with contextlib.suppress(BrokenPipeError):  # somebody has killed the janitor
        pipe.write(json.dumps(words).encode() + b"\n")
        pipe.flush()


@functools.cache
def _janitor() -> subprocess.Popen:
    # -I, -S: nothing of the current folder, of the user's or of the installation is imported.
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    with interruption.hold_signals(), interruption.block_signals():
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def tidy_up_after(lines: Iterator[str]) -> None:
    """Run the janitor: record what comes and goes, and at the end of ``lines`` remove what is left."""
    left: dict[tuple[str, Any], None] = {}
    for line in lines:
        sign, kind, what = json.loads(line)
        left = {key: None for key in left if key != (kind, what)}
        if sign == "+":
            left[kind, what] = None
    for kind, what in left:
        if kind == "group":
            kill_group(what)
    for kind, what in left:
        end = time.monotonic() + PATIENCE
        while kind == "folder" and os.path.exists(what) and time.monotonic() < end:
            shutil.rmtree(what, ignore_errors=True)
            time.sleep(0.01)


if __name__ == "__main__":
    tidy_up_after(sys.stdin)
