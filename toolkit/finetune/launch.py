"""``toolkit finetune --processes N`` and ``--gpus 0,1``: the gate in this process, then the run in several, watched.

The processes get the environment of ``python -m paddle.distributed.launch``, which works as well, and is the way over
several machines. It is not used here, since it writes its whole environment, tokens included, into a folder of logs,
and takes the first process's output off the terminal. Also, where one process is killed, the others fail for want of it
before the launcher looks, and it names the first of all that have failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from models.files import another_python
from toolkit.errors import ToolkitError, UserError
from toolkit.files.lossless import remove_empty_folders
from toolkit.files.ownership import claim, remove_from_run
from toolkit.finetune.finetune import prove
from toolkit.machine import interruption, runtime
from toolkit.machine.interruption import STATUSES
from toolkit.machine.scratch import child
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import LOGS, lock_run_folder
from toolkit.run_folder.tracking import check_trackers
from toolkit.terminal.escape import one_line
from toolkit.training.ranks import LOST_PROCESS_STATUS, SUPERVISOR_PIPE_VARIABLE

#: Seconds that the others are given to fail for the same reason, and to say so, when one has failed or was killed.
GRACE, GRACE_AFTER_KILL = 10.0, 0.5
#: Seconds between two polls of the processes.
INTERVAL = 0.05
#: Characters of a log's last line to repeat.
LAST_WORDS = 300


@dataclass(frozen=True)
class Team:
    """The processes that are to train together on this machine.

    Attributes:
        size: how many.
        gpus: the numbers of their GPUs; None on CPUs.
    """

    size: int
    gpus: tuple[str, ...] | None = None

    @classmethod
    def of(cls, processes: int | None, gpus: str | None) -> Team:
        """Team of the options ``--processes`` and ``--gpus``. Raises UserError if they make none."""
        if processes is not None and gpus is not None:
            raise UserError("--processes: cannot be combined with --gpus, which starts a process for each GPU")
        if runtime.processes() > 1:
            raise UserError("--processes, --gpus: a launcher has started several processes already; remove the option")
        if gpus is None:
            return cls(processes or 1)
        numbers = tuple(number.strip() for number in gpus.split(","))
        if not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
            raise UserError(f"--gpus {gpus}: expected the numbers of GPUs, each once, for example --gpus 0,1")
        return cls(len(numbers), numbers)

    def environment(self) -> dict[str, str]:
        """Environment in which a process sees the team's GPUs and no others. Raises UserError if a number is of none of
        the visible GPUs."""
        if self.gpus is None:
            return {"CUDA_VISIBLE_DEVICES": "", "PADDLE_DISTRI_BACKEND": "gloo"}
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not seen:
            return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        names = seen.split(",")
        if beyond := [number for number in self.gpus if int(number) >= len(names)]:
            raise UserError(f"--gpus: there is no GPU {beyond[0]} among CUDA_VISIBLE_DEVICES={seen}")
        return {"CUDA_VISIBLE_DEVICES": ",".join(names[int(number)] for number in self.gpus)}


def finetune_together(
    recipe: Recipe, skip_parity: str | None, team: Team, arguments: Sequence[str], console: Console, verbose: bool
) -> int:
    """Run a recipe in several processes, or resume its interrupted run; return the exit status.

    Args:
        skip_parity: why the gate is not run, or None to run it.
        arguments: of the command ``toolkit finetune`` for this recipe, without those that make the team.

    Raises:
        As :func:`toolkit.finetune.finetune.finetune`, and:
        ToolkitError: a process has ended before its time: which, how, and where its log is.
    """
    if team.gpus is None and recipe.runtime.device == "gpu":
        raise recipe.error("runtime.device", "gpu: --processes is for CPUs; to train on GPUs, --gpus 0,1")
    if team.gpus is not None and recipe.runtime.device == "cpu":
        raise recipe.error("runtime.device", "cpu: --gpus is for GPUs; to train on CPUs, --processes N")
    check_trackers(recipe)
    # Before this process sets the threads of one that is alone.
    before = {**another_python.environment(), **team.environment()}
    os.environ.update(team.environment())
    with lock_run_folder(recipe) as folder:
        told = prove(folder, recipe, skip_parity, console, team.size, verbose)
    return _run(team, before, arguments, told, folder)


def _run(team: Team, before: Mapping[str, str], arguments: Sequence[str], told: dict[str, Any], folder: Path) -> int:
    """Start the processes, and wait for them; returns the exit status."""
    logs = folder / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder)  # the claim was given up where it stayed empty
    logs.mkdir(exist_ok=True)
    command = another_python.module_command(sys.executable, "toolkit", "finetune", *arguments)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        json.dump(told, pipe)
    sys.stdout.flush()
    try:
        with interruption.note_signals(), contextlib.ExitStack() as running:
            processes = []
            for number, places in enumerate(_places(team, running.enter_context(_held_port()))):
                environment = {**before, **places, SUPERVISOR_PIPE_VARIABLE: str(reading) if number == 0 else ""}
                with contextlib.ExitStack() as opened:
                    options: dict[str, Any] = {"pass_fds": (reading,)}
                    if number:
                        log = opened.enter_context(_log(logs, number).open("wb"))
                        options = {"stdout": log, "stderr": subprocess.STDOUT}
                    started = child(command, env=environment, stdin=subprocess.DEVNULL, **options)
                    processes.append(running.enter_context(started))
            ended = _wait(processes)
    finally:
        os.close(reading)
    status = _status(ended, team.size, logs)
    if status == 0:
        for number in range(1, team.size):
            remove_from_run(folder, _log(logs, number))
        remove_empty_folders([logs])
    return status


@contextlib.contextmanager
def _held_port() -> Iterator[str]:
    """Hold an address where the processes can meet, which no other program gets inside the ``with`` block. The first
    process binds it as well: it allows an address that is bound already, if nobody listens there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def _places(team: Team, meeting: str) -> list[dict[str, str]]:
    """The environment of each process, as Paddle's launcher gives it; ``meeting`` is the address at which they meet."""
    with contextlib.ExitStack() as opened:  # all at once, or two might be the same
        sockets = [opened.enter_context(socket.socket()) for _ in range(team.size)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ends = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    return [
        {
            "PADDLE_MASTER": meeting,
            "PADDLE_TRAINERS_NUM": str(team.size),
            "PADDLE_TRAINER_ID": str(number),
            "PADDLE_GLOBAL_SIZE": str(team.size),
            "PADDLE_GLOBAL_RANK": str(number),
            "PADDLE_LOCAL_SIZE": str(team.size),
            "PADDLE_LOCAL_RANK": str(number),
            "PADDLE_RANK_IN_NODE": str(number),
            "PADDLE_NNODES": "1",
            "PADDLE_TRAINER_ENDPOINTS": ",".join(ends),
            "PADDLE_CURRENT_ENDPOINT": ends[number],
            **({} if team.gpus is None else {"FLAGS_selected_gpus": str(number)}),
        }
        for number in range(team.size)
    ]


def _wait(processes: Sequence[subprocess.Popen]) -> dict[int, int]:
    """Wait until all have ended, or one has failed and the others' grace is over; pass a signal to stop on to all.
    Returns number -> exit status, or minus the signal, in the order in which they ended."""
    ended: dict[int, int] = {}
    deadline, handed_on = float("inf"), False
    while len(ended) < len(processes) and time.monotonic() < deadline:
        for number, process in enumerate(processes):
            if number in ended or process.poll() is None:
                continue
            ended[number] = process.returncode
            if ended[number] not in (0, *STATUSES):
                grace = GRACE if ended[number] > 0 else GRACE_AFTER_KILL
                deadline = min(deadline, time.monotonic() + grace)
        if interruption.came() and not handed_on:
            handed_on = True
            for process in processes:
                process.send_signal(interruption.exit_status() - 128)
        time.sleep(INTERVAL)
    return ended


def _status(ended: Mapping[int, int], size: int, logs: Path) -> int:
    """The exit status of the run. Raises ToolkitError if a process has failed that could not say so on the terminal."""
    if ended.get(0, 0) > 0 and ended[0] != LOST_PROCESS_STATUS:  # it has said why
        return ended[0]
    if not any(status not in (0, *STATUSES) for status in ended.values()):
        return max(ended.values()) if ended[0] else 0  # the first has finished the run
    number = next(
        (number for number, status in ended.items() if status not in (0, LOST_PROCESS_STATUS, *STATUSES)),
        next(number for number, status in ended.items() if status not in (0, *STATUSES)),
    )
    status = ended[number]
    how = f"ended with status {status}" if status > 0 else f"was killed by {interruption.name_of(-status)}"
    log = _log(logs, number)
    where = f"its log is {log}{_last_words(log)}" if number else "what it said is above"
    kind = UserError if status == UserError.exit_status else ToolkitError
    raise kind(f"rank {number} of {size} processes {how}; {where}; the same command goes on from the last checkpoint")


def _log(logs: Path, number: int) -> Path:
    return logs / f"rank-{number}.log"


def _last_words(log: Path) -> str:
    """The last line of a log, in quotes."""
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        if lines:
            return f', its last line "{one_line(lines[-1])[:LAST_WORDS]}"'
    return ""
