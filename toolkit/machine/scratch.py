"""Temporary folders and child processes that do not outlive this one, however it ends.

A killed process cannot clean up. So a small separate process, the janitor, reads the other end of a pipe. It receives
a message when a folder or a child appears and when it is gone. When the pipe closes, the janitor kills the remaining
children and removes the remaining folders. It has its own session, so it gets neither Ctrl-C nor a signal to the group.

A child may start processes in other sessions, which outlive the child and its process group. All of them inherit the
environment variable :data:`TREES_VARIABLE`. The janitor finds them in ``/proc`` by this variable and kills them.

This file, run as a script, is the janitor; so it imports only the standard library.
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
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ != "__main__":  # the janitor does not import the toolkit
    from toolkit.machine import interruption

#: Seconds in which the janitor tries to remove a folder: a process that it has killed may still be writing there.
REMOVAL_SECONDS = 5.0
#: Environment variable with the names of the process trees that a process belongs to, separated by blanks.
TREES_VARIABLE = "TOOLKIT_PROCESS_TREES"


@contextlib.contextmanager
def scratch_folder(prefix: str, parent_folder: Path | None = None) -> Iterator[Path]:
    """Create a folder that is removed after the ``with`` block, or when this process ends.

    Args:
        prefix: prefix of the folder's name.
        parent_folder: folder that contains it; None for the system's folder of temporary files.
    """
    with contextlib.ExitStack() as exit_stack:
        with interruption.hold_signals():
            folder = tempfile.mkdtemp(prefix=prefix, dir=parent_folder)
            exit_stack.enter_context(_register_with_janitor("folder", folder))
            exit_stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Path(folder)


def scratch_until_exit(prefix: str) -> Path:
    """Create a temporary folder that is removed when this process ends."""
    exit_stack = contextlib.ExitStack()
    atexit.register(exit_stack.close)
    return exit_stack.enter_context(scratch_folder(prefix))


@contextlib.contextmanager
def child_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Start a process that, with all its descendants, is killed after the ``with`` block, or when this process ends.

    Args:
        command: program and arguments of the process.
        options: keyword arguments of :class:`subprocess.Popen`. The process gets its own session, and the ending
            signals are blocked in it: only this process gets them, and decides which processes end.
    """
    tree = uuid.uuid4().hex
    environment = dict(options.pop("env", os.environ))
    environment[TREES_VARIABLE] = f"{environment.get(TREES_VARIABLE, '')} {tree}".strip()
    with contextlib.ExitStack() as exit_stack:
        with interruption.hold_signals(), interruption.block_signals():
            process = subprocess.Popen(command, start_new_session=True, env=environment, **options)
            exit_stack.enter_context(_register_with_janitor("processes", f"{process.pid} {tree}"))
            exit_stack.callback(process.wait)
            exit_stack.callback(kill_processes, process.pid, tree)
        yield process


def kill_processes(leader: int, tree: str) -> None:
    """Kill a process group and all other processes of its process tree.

    A process that removed :data:`TREES_VARIABLE` from its environment and left the group is not found.

    Args:
        leader: id of the process that leads the group.
        tree: name of the process tree in :data:`TREES_VARIABLE`.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # an ended process; macOS reports PermissionError
        os.killpg(leader, signal.SIGKILL)
    killed_processes: set[int] = set()
    while new_processes := set(_find_tree(tree)) - killed_processes:  # a process may start another until it is killed
        killed_processes |= new_processes
        for process in new_processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


def _find_tree(tree: str) -> Iterator[int]:
    """Yield the ids of the running processes of a process tree; none if the system has no ``/proc``.

    Args:
        tree: name of the process tree in :data:`TREES_VARIABLE`.
    """
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if tree.encode() in path.read_bytes():
                yield int(path.parent.name)


@contextlib.contextmanager
def _register_with_janitor(kind: str, identifier: str) -> Iterator[None]:
    """Let the janitor clean up after the ``with`` block if this process is killed in it.

    Args:
        kind: kind of the object that is cleaned up.
        identifier: path of the folder, or process id and process tree of the child.
    """
    _notify_janitor("+", kind, identifier)
    try:
        yield
    finally:
        _notify_janitor("-", kind, identifier)


def _notify_janitor(*message_parts: str) -> None:
    """Send a message to the janitor process, and start the process if it does not run yet.

    Args:
        message_parts: ``+`` or ``-``, the kind of the object, and its identifier.
    """
    try:
        pipe = _start_janitor().stdin
    except PermissionError:  # this user may not start Python, so the janitor is missing
        return
    assert pipe is not None
    with contextlib.suppress(BrokenPipeError):  # the janitor was killed
        pipe.write(json.dumps(message_parts).encode() + b"\n")
        pipe.flush()


@functools.cache
def _start_janitor() -> subprocess.Popen:
    """Start the janitor process, which reads messages from its standard input."""
    # -I, -S: import no files of the current folder, the user or the installed packages.
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    environment = {name: value for name, value in os.environ.items() if name != TREES_VARIABLE}  # it outlives the tree
    with interruption.hold_signals(), interruption.block_signals():
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, env=environment
        )


def run_janitor(lines: Iterator[str]) -> None:
    """Run the janitor: read its messages, and at their end kill the remaining processes and remove the folders."""
    remaining: dict[tuple[str, Any], None] = {}
    for line in lines:
        sign, kind, identifier = json.loads(line)
        remaining = {key: None for key in remaining if key != (kind, identifier)}
        if sign == "+":
            remaining[kind, identifier] = None
    for kind, identifier in remaining:
        if kind == "processes":
            leader, tree = identifier.split()
            kill_processes(int(leader), tree)
    for kind, identifier in remaining:
        deadline = time.monotonic() + REMOVAL_SECONDS
        while kind == "folder" and os.path.exists(identifier) and time.monotonic() < deadline:
            shutil.rmtree(identifier, ignore_errors=True)
            time.sleep(0.01)


if __name__ == "__main__":
    run_janitor(sys.stdin)
