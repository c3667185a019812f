"""Start and end of both workers: each leaves a result, or the reason why it has none."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from models import collector
from toolkit.errors import ToolkitError
from toolkit.parity.exchange import files
from toolkit.parity.job.user_code import UserCodeError
from toolkit.terminal.failure import describe

#: Exit status of a worker that a user's file has stopped, and of a worker that stopped for another reason.
BY_USER_CODE, BY_ITSELF = 2, 1
#: Signal that makes a worker log the stack of each of its threads.
STACK = signal.SIGUSR1
#: Advice in the message of a worker that had too little memory.
LESS_MEMORY = "fewer examples (parity.examples, --batch-size) or a shorter text (data.max_length, --length) take less"


def run(side: str, main: Callable[[str, Path], None], task: str, folders: Sequence[str]) -> None:
    """Run a task on each job folder, and end this process with an exit status.

    The process ends at once, since a thread of a framework or of the user's code may otherwise keep it alive. If the
    task fails, the reason is written to :func:`.files.failure_path`, and the exit status is :data:`BY_USER_CODE` or
    :data:`BY_ITSELF`.

    Args:
        side: the worker, ``reference`` or ``candidate``.
        main: runs the task, given its name and a job folder.
        task: name of the task.
        folders: job folders, one after another.
    """
    collector.skip_collection_at_exit()
    faulthandler.register(STACK)
    for folder in map(Path, folders):
        try:
            main(task, folder)
        except BaseException as error:
            files.remove_unfinished(folder, side)  # on a full disk the reason needs room, too
            with contextlib.suppress(OSError, ToolkitError):
                (folder / side).mkdir(exist_ok=True)
                files.write_text(files.failure_path(folder, side, task), describe(error, LESS_MEMORY))
            with contextlib.suppress(OSError):
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(BY_USER_CODE if isinstance(error, UserCodeError) else BY_ITSELF)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
