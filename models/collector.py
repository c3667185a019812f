"""Import a large framework, and end a process that has one, without garbage collection."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator

_is_command = False


def in_a_command() -> None:
    """Declare that this process does one thing and ends. The collector then never walks again over what :func:`paused`
    lets it import, and over nothing at exit: with Paddle that saves a second, and the system frees the memory anyway.

    Python's other work at exit is done: files are flushed, threads joined, `atexit` functions called.
    """
    global _is_command
    if not _is_command:
        _is_command = True
        atexit.register(gc.freeze)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage in the ``with`` block.

    An import makes hundreds of thousands of objects that stay, and the collector walks over all of them again and
    again. That takes a fifth of the import time of Paddle, PaddleNLP and `datasets`.
    """
    collecting, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if _is_command and len(sys.modules) > loaded:
            gc.freeze()
        if collecting:
            gc.enable()
