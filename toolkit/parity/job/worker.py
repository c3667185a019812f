"""How both workers start and end: a result, or the reason why there is none."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.parity.job import files


def run(side: str, main: Callable[[Path], None], folders: Sequence[str]) -> None:
    """Run ``main`` on each job folder. If it fails, its last words go into
    ``SIDE/failed``, and the process ends at once: threads of a framework may otherwise keep it alive."""
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    for folder in map(Path, folders):
        try:
            main(folder)
        except BaseException as problem:
            files.write_text(folder / side / "failed", "".join(traceback.format_exception_only(problem)).strip())
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended in a way that let it tidy up nothing."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
