"""The gate's workers in tests, forked from a process that has done their imports: five seconds of processor time less
for each gate. All else is the worker's own: its environment, folder, log, session, and the way it begins and ends.

A worker that would import otherwise is started as it always is: by another interpreter, in another environment or with
other threads, with the reference's kernels, or on a GPU.

Run as a script, this file is the process that is forked from; it ends with the one that has started it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: The variable of :mod:`toolkit.parity.job.handover`, which is imported when the framework's environment has been set.
PIPE = "TOOLKIT_PARITY_PIPE"
#: What may differ from gate to gate: nothing reads it while it is imported.
READ_LATER = {"TMPDIR", "TOOLKIT_CACHE", "TOOLKIT_KERNELS", "PYTEST_CURRENT_TEST", "COLUMNS", PIPE}
#: What a worker imports whatever its task: of the gate's own models, and of a user's pair.
IMPORTED = {
    ("reference", False): ("environment", "families.reformer.reference", "families.ctrl.reference", "measure"),
    ("reference", True): ("environment", "families.pair.reference", "measure"),
    ("candidate", False): ("kernel_client", "families.reformer.candidate", "families.ctrl.candidate", "result"),
    ("candidate", True): ("kernel_client", "families.pair.candidate", "result"),
    ("comparator", False): ("result", "forced_input"),
    ("comparator", True): ("result", "forced_input"),
}
#: Side -> the library that a user's file of it may name, and the module of it that takes seconds to import.
LARGE = {
    "reference": ("transformers", "transformers.generation.utils"),
    "candidate": ("paddlenlp", "paddlenlp.transformers"),
}
#: Processes that are kept to fork from.
MOST = 6


class Kind(NamedTuple):
    """What workers that are forked from one process have in common.

    Attributes:
        side: ``reference``, ``candidate`` or ``comparator``.
        is_pair: whether of a user's pair.
        is_large: whether the user's file names its side's library of :data:`LARGE`.
        is_spare: whether they keep no freed memory, as the workers of a large model do not.
    """

    side: str
    is_pair: bool
    is_large: bool
    is_spare: bool


class Started:
    """A worker; what of :class:`subprocess.Popen` the gate uses."""

    def __init__(self, told: int) -> None:
        self._told = told
        self.pid = self._number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = self._number()
            os.close(self._told)
        return self.returncode

    def _number(self) -> int:
        """Of the next line; no more is read, so that what follows can be waited for."""
        digits = b""
        while (one := os.read(self._told, 1)) not in (b"\n", b""):
            digits += one
        return int(digits)


class Origins:
    """The processes that workers are forked from, one for each :class:`Kind`, started when first asked for; of more
    than :data:`MOST` the one used least recently ends. In another environment than its own a worker is started anew,
    once: tests set variables for themselves, but some that a library sets when it is imported stay, and a process with
    these takes the place of the former one."""

    def __init__(self) -> None:
        self._running: dict[Kind, tuple[socket.socket, subprocess.Popen, dict[str, str]]] = {}
        self._asked: dict[Kind, dict[str, str]] = {}

    @contextlib.contextmanager
    def child(
        self, command: Sequence[str], env: Mapping[str, str], stdout: Any, stdin: int, **options: Any
    ) -> Iterator[Any]:
        """As :func:`toolkit.machine.scratch.child`, of the command of a worker."""
        from toolkit.machine import scratch

        if (origin := self._origin(command, env)) is None:
            with scratch.child(command, env=env, stdout=stdout, stdin=stdin, **options) as process:
                yield process
            return
        told, tells = os.pipe()
        asked = json.dumps({"arguments": command[4:], "environment": dict(env), "folder": os.getcwd()})
        given = stdin if stdin != subprocess.DEVNULL else options.get("pass_fds", [None])[0]
        socket.send_fds(origin, [asked.encode()], [stdout.fileno(), tells, *([] if given is None else [given])])
        os.close(tells)
        worker = Started(told)
        with scratch._watched("group", worker.pid):
            try:
                yield worker
            finally:
                scratch.kill_group(worker.pid)
                worker.wait()

    def close(self) -> None:
        for kind in list(self._running):
            self._end(kind)

    def _end(self, kind: Kind) -> None:
        connection, process, _ = self._running.pop(kind)
        connection.close()
        process.wait()

    def _origin(self, command: Sequence[str], env: Mapping[str, str]) -> socket.socket | None:
        """Of a worker; None where it has to be started anew."""
        from toolkit.parity.job import files, launch

        (python, _, _, _, module, task, *folders), side = command, command[4].rpartition(".")[2]
        if command != launch.module_command(sys.executable, module, task, *folders) or task == "attribution":
            return None
        if not all(Path(folder, "job.json").exists() for folder in folders):  # of a test of processes alone
            return None
        jobs = [files.read_job(Path(folder)) for folder in folders]
        if any(job.kernels is not None or job.device != "cpu" for job in jobs):
            return None
        threads = str(jobs[0].threads)
        settings = {name: value for name, value in env.items() if name not in READ_LATER} | {"threads": threads}
        kind = _kind(side, jobs[0])
        before, self._asked[kind] = self._asked.get(kind), settings
        if kind in self._running and settings != self._running[kind][2]:
            if settings != before:
                return None
            self._end(kind)
        if kind not in self._running:
            if len(self._running) == MOST:
                self._end(next(iter(self._running)))
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program = [python, __file__, json.dumps(kind), threads, str(theirs.fileno())]
            process = subprocess.Popen(program, env=env, pass_fds=[theirs.fileno()], start_new_session=True)
            theirs.close()
            self._running[kind] = ours, process, settings
        self._running[kind] = self._running.pop(kind)  # the one used last is the last to go
        return self._running[kind][0]


def _kind(side: str, job: Any) -> Kind:
    from toolkit.parity.job.user_code import UserCodeError, located

    is_large = False
    if job.pair is not None and side in LARGE:
        source = job.pair.reference if side == "reference" else job.pair.port
        with contextlib.suppress(UserCodeError):  # which the worker reports
            is_large = LARGE[side][0] in located(source).read_text()
    # As the side's own __main__ has it.
    is_spare = job.brief or (job.streamed and side != "candidate")
    return Kind(side, job.pair is not None, is_large, is_spare)


# -- the process that is forked from ---------------------------------------------------------------------------------


def import_for(kind: Kind, threads: int) -> None:
    """Import what a worker of this kind does, in its order, and as it does."""
    import gc

    if kind.side == "candidate":
        from toolkit.machine import runtime

        runtime.configure("cpu", threads, keep_memory=not kind.is_spare)
    elif not kind.is_spare:
        from toolkit.machine.heap import keep_freed_memory

        keep_freed_memory()
    names = [
        f"toolkit.parity.{name if name.startswith('families.') else f'{kind.side}.{name}'}"
        for name in IMPORTED[kind.side, kind.is_pair]
    ]
    with contextlib.ExitStack() as importing:
        if kind.side == "reference":
            from toolkit.parity.reference.imports import left_out

            importing.enter_context(left_out([], own_families=not kind.is_pair))
        for name in [*names, *([LARGE[kind.side][1]] if kind.is_large else [])]:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def serve(connection: socket.socket) -> list[str]:
    """Fork for each that asks; returns in the worker, with the module that it is to run and its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, given, _, _ = socket.recv_fds(connection, 2**20, 3)
        if not asked:
            os._exit(0)
        if not os.fork():
            break
        for number in given:
            os.close(number)
    log, tells, *pipe = given
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if worker := os.fork():  # this one tells how it ends
        for number in pipe:  # whose other end is to see when the worker ends
            os.close(number)
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(tells, b"%d\n" % status)
        os._exit(0)
    os.setsid()
    os.write(tells, b"%d\n" % os.getpid())  # it can be killed with its group from now on
    os.close(tells)
    become(json.loads(asked), log, *pipe)
    return json.loads(asked)["arguments"]


def become(asked: Mapping[str, Any], log: int, pipe: int | None = None) -> None:
    """Make this process the one that would have been started, with an end of a pipe if that was given one: the port's
    to write to, the comparator's to read from."""
    import tempfile

    import numpy as np

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(asked["environment"])
    if pipe is not None and PIPE in os.environ:
        os.environ[PIPE] = str(pipe)
    elif pipe is not None:
        os.dup2(pipe, 0)
        os.close(pipe)
    os.chdir(asked["folder"])
    tempfile.tempdir = None
    np.random.seed()  # Python's own generator is seeded anew by a fork


def main() -> None:
    import runpy

    content, threads, number = sys.argv[1:]
    kind = Kind(*json.loads(content))
    sys.path[0] = str(ROOT)
    import_for(kind, int(threads))
    module, *arguments = serve(socket.socket(fileno=int(number)))
    if kind.side == "candidate":  # it sets this before it imports Paddle
        from toolkit.machine import runtime

        os.environ.update(runtime.environment(int(threads)))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
