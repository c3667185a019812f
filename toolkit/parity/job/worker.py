"""How both workers start and end: a result, or the reason why there is none."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.parity.job import files


def run(side: str, main: Callable[[str, Path], None], task: str, folders: Sequence[str]) -> None:
    """Run ``main`` for a task on each job folder. If it fails, its last words go where :func:`.files.failure_path`
    says, and the process ends at once: threads of a framework may otherwise keep it alive."""
    for folder in map(Path, folders):
        try:
            main(task, folder)
        except BaseException as problem:
            words = "".join(traceback.format_exception_only(problem)).strip()
            files.write_text(files.failure_path(folder, side, task), words)
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
