"""How both workers start and end: a result, or the reason why there is none."""

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
from toolkit.parity.job import files
from toolkit.parity.job.user_code import UserCodeError
from toolkit.terminal.failure import describe

#: Exit status of a worker that a user's file has stopped, and of a worker that stopped for another reason.
BY_USER_CODE, BY_ITSELF = 2, 1
#: Signal that makes a worker log the stack of each of its threads.
STACK = signal.SIGUSR1
#: Advice on a smaller gate.
LESS_MEMORY = "fewer examples (parity.examples, --batch-size) or a shorter text (data.max_length, --length) take less"


def run(side: str, main: Callable[[str, Path], None], task: str, folders: Sequence[str]) -> None:
    """Run ``main`` for a task on each job folder, and end the process: a framework's or user's thread may otherwise
    keep it alive. If it fails, the reason is written to :func:`.files.failure_path`, and the exit status shows whose
    fault it is."""
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
