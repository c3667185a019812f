"""Run ``toolkit finetune --processes N`` and ``--gpus 0,1``: the gate in this process, then the run in several.

The processes get the environment of ``python -m paddle.distributed.launch``, which works as well, and is needed for
several machines. It is not used here, since it writes its whole environment, tokens included, into a folder of logs,
and takes the first process's output off the terminal. Also, if one process is killed, the others fail before the
launcher looks, and it names the first of the failed processes.
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
from toolkit.files.ownership import claim_folder, remove_from_run
from toolkit.finetune.finetune import prepare_training
from toolkit.machine import interruption, runtime
from toolkit.machine.interruption import EXIT_STATUSES
from toolkit.machine.scratch import child_process
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import LOGS, lock_run_folder
from toolkit.run_folder.tracking import check_trackers
from toolkit.terminal.escape import one_line
from toolkit.training.ranks import LOST_PROCESS_STATUS, SUPERVISOR_PIPE_VARIABLE

#: Seconds after a process has failed, or was killed, in which the others may fail and report the same reason.
GRACE_SECONDS, GRACE_SECONDS_AFTER_KILL = 10.0, 0.5
#: Seconds between two polls of the processes.
POLL_SECONDS = 0.05
#: Characters of a log's last line to repeat.
MAX_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class Team:
    """The processes that train together on this machine.

    Attributes:
        size: number of processes.
        gpus: numbers of their GPUs; None on CPUs.
    """

    size: int
    gpus: tuple[str, ...] | None = None

    @classmethod
    def of(cls, processes: int | None, gpus: str | None) -> Team:
        """Return the team of the options ``--processes`` and ``--gpus``.

        Raises:
            UserError: the options are not valid together.
        """
        if processes is not None and gpus is not None:
            raise UserError("--processes: cannot be combined with --gpus, which starts a process for each GPU")
        if runtime.num_processes() > 1:
            raise UserError("--processes, --gpus: a launcher has started several processes already; remove the option")
        if gpus is None:
            return cls(processes or 1)
        numbers = tuple(number.strip() for number in gpus.split(","))
        if not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
            raise UserError(f"--gpus {gpus}: expected the numbers of GPUs, each once, for example --gpus 0,1")
        return cls(len(numbers), numbers)

    def environment(self) -> dict[str, str]:
        """Return the environment in which a process sees the team's GPUs only.

        Raises:
            UserError: a number does not belong to a visible GPU.
        """
        if self.gpus is None:
            return {"CUDA_VISIBLE_DEVICES": "", "PADDLE_DISTRI_BACKEND": "gloo"}
        visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not visible_gpus:
            return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        names = visible_gpus.split(",")
        if missing_gpus := [number for number in self.gpus if int(number) >= len(names)]:
            raise UserError(f"--gpus: there is no GPU {missing_gpus[0]} among CUDA_VISIBLE_DEVICES={visible_gpus}")
        return {"CUDA_VISIBLE_DEVICES": ",".join(names[int(number)] for number in self.gpus)}


def finetune_together(
    recipe: Recipe,
    skip_parity: str | None,
    team: Team,
    finetune_arguments: Sequence[str],
    console: Console,
    *,
    verbose: bool,
) -> int:
    """Run a recipe in several processes, or resume its interrupted run; return the exit status.

    Args:
        recipe: recipe of the run.
        skip_parity: reason for skipping the gate, or None to run it.
        team: processes to start.
        finetune_arguments: arguments of ``toolkit finetune`` for this recipe, without the options of the team.
        console: console for messages.
        verbose: whether to print the table of a gate that passes, too.

    Raises:
        ToolkitError: a process has ended too early; the error contains the process, the reason and its log file. The
            errors of :func:`toolkit.finetune.finetune.finetune` are raised as well.
    """
    if team.gpus is None and recipe.runtime.device == "gpu":
        raise recipe.error("runtime.device", "gpu: --processes is for CPUs; to train on GPUs, --gpus 0,1")
    if team.gpus is not None and recipe.runtime.device == "cpu":
        raise recipe.error("runtime.device", "cpu: --gpus is for GPUs; to train on CPUs, --processes N")
    check_trackers(recipe)
    # Copy the environment before this process sets its number of threads.
    base_environment = {**another_python.clean_environment(), **team.environment()}
    os.environ.update(team.environment())
    with lock_run_folder(recipe) as folder:
        handover = prepare_training(folder, recipe, skip_parity, console, team.size, verbose=verbose)
    return _run(team, base_environment, finetune_arguments, handover, folder)


def _run(
    team: Team,
    base_environment: Mapping[str, str],
    finetune_arguments: Sequence[str],
    handover: dict[str, Any],
    folder: Path,
) -> int:
    """Start the processes, and wait for them; return the exit status.

    Args:
        team: processes of the run.
        base_environment: environment variables of all processes.
        finetune_arguments: arguments of the command line of each process.
        handover: objects for the first process.
        folder: run folder.
    """
    logs = folder / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    claim_folder(folder)  # an empty folder was released
    logs.mkdir(exist_ok=True)
    command = another_python.module_command(sys.executable, "toolkit", "finetune", *finetune_arguments)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        json.dump(handover, pipe)
    sys.stdout.flush()
    try:
        with interruption.note_signals(), contextlib.ExitStack() as stack:
            processes = []
            for number, process_environment in enumerate(
                _process_environments(team, stack.enter_context(_reserve_address()))
            ):
                environment = {
                    **base_environment,
                    **process_environment,
                    SUPERVISOR_PIPE_VARIABLE: str(reading) if number == 0 else "",
                }
                with contextlib.ExitStack() as log_file:
                    options: dict[str, Any] = {"pass_fds": (reading,)}
                    if number:
                        log = log_file.enter_context(_log(logs, number).open("wb"))
                        options = {"stdout": log, "stderr": subprocess.STDOUT}
                    process = child_process(command, env=environment, stdin=subprocess.DEVNULL, **options)
                    processes.append(stack.enter_context(process))
            statuses = _wait_for_processes(processes)
    finally:
        os.close(reading)
    status = _exit_status(statuses, team.size, logs)
    if status == 0:
        for number in range(1, team.size):
            remove_from_run(folder, _log(logs, number))
        remove_empty_folders([logs])
    return status


@contextlib.contextmanager
def _reserve_address() -> Iterator[str]:
    """Reserve an address for the connection of the processes inside the ``with`` block.

    The first process binds it as well: it can bind an address that is bound already, as long as no socket listens
    there.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _process_environments(team: Team, address: str) -> list[dict[str, str]]:
    """Return the environment of each process, as Paddle's launcher sets it.

    Args:
        team: processes to start.
        address: address at which the processes connect.
    """
    with contextlib.ExitStack() as stack:  # bind all at once, so that no two are equal
        sockets = [stack.enter_context(socket.socket()) for _ in range(team.size)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        endpoints = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
    return [
        {
            "PADDLE_MASTER": address,
            "PADDLE_TRAINERS_NUM": str(team.size),
            "PADDLE_TRAINER_ID": str(number),
            "PADDLE_GLOBAL_SIZE": str(team.size),
            "PADDLE_GLOBAL_RANK": str(number),
            "PADDLE_LOCAL_SIZE": str(team.size),
            "PADDLE_LOCAL_RANK": str(number),
            "PADDLE_RANK_IN_NODE": str(number),
            "PADDLE_NNODES": "1",
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[number],
            **({} if team.gpus is None else {"FLAGS_selected_gpus": str(number)}),
        }
        for number in range(team.size)
    ]


def _wait_for_processes(processes: Sequence[subprocess.Popen]) -> dict[int, int]:
    """Wait until all processes have ended, or the grace period after a failure is over; forward a stop signal.

    Returns:
        Exit statuses by process, or minus the signal, in the order of their ends.
    """
    statuses: dict[int, int] = {}
    deadline, has_sent_signal = float("inf"), False
    while len(statuses) < len(processes) and time.monotonic() < deadline:
        for number, process in enumerate(processes):
            if number in statuses or process.poll() is None:
                continue
            statuses[number] = process.returncode
            if statuses[number] not in (0, *EXIT_STATUSES):
                grace = GRACE_SECONDS if statuses[number] > 0 else GRACE_SECONDS_AFTER_KILL
                deadline = min(deadline, time.monotonic() + grace)
        if interruption.has_signal() and not has_sent_signal:
            has_sent_signal = True
            for process in processes:
                process.send_signal(interruption.exit_status() - 128)
        time.sleep(POLL_SECONDS)
    return statuses


def _exit_status(statuses: Mapping[int, int], size: int, logs: Path) -> int:
    """Return the exit status of the run.

    Args:
        statuses: exit status of each process, by its number.
        size: number of processes.
        logs: folder of the processes' log files.

    Raises:
        ToolkitError: a process has failed that could not print its reason on the terminal.
    """
    if statuses.get(0, 0) > 0 and statuses[0] != LOST_PROCESS_STATUS:  # the first process has printed the reason
        return statuses[0]
    if not any(status not in (0, *EXIT_STATUSES) for status in statuses.values()):
        return max(statuses.values()) if statuses[0] else 0  # the first has finished the run
    number = next(
        (number for number, status in statuses.items() if status not in (0, LOST_PROCESS_STATUS, *EXIT_STATUSES)),
        next(number for number, status in statuses.items() if status not in (0, *EXIT_STATUSES)),
    )
    status = statuses[number]
    how = f"ended with status {status}" if status > 0 else f"was killed by {interruption.signal_name(-status)}"
    log = _log(logs, number)
    where = f"its log is {log}{_last_words(log)}" if number else "what it said is above"
    kind = UserError if status == UserError.exit_status else ToolkitError
    raise kind(f"rank {number} of {size} processes {how}; {where}; the same command goes on from the last checkpoint")


def _log(logs: Path, number: int) -> Path:
    """Return the path of the log file of the process with this number."""
    return logs / f"rank-{number}.log"


def _last_words(log: Path) -> str:
    """The last line of a log, in quotes."""
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        if lines:
            return f', its last line "{one_line(lines[-1])[:MAX_MESSAGE_CHARACTERS]}"'
    return ""
