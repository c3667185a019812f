"""Importing a large framework, and ending a process that has one, without looking for garbage meanwhile."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator

_is_command = False


def in_a_command() -> None:
    """Say that this process does one thing and ends. What :func:`paused` lets it import is then never walked over
    again, and at its end nothing is: beside Paddle that is a second, for memory that the system takes back at once.

    All else that Python does at its end is done: files are flushed, threads awaited, functions of `atexit` called.
    """
    global _is_command
    if not _is_command:
        _is_command = True
        atexit.register(gc.freeze)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No garbage is collected in the ``with`` block.

    An import makes hundreds of thousands of objects that stay, and the collector walks over all of them again and
    again: a fifth of the time that Paddle, PaddleNLP and `datasets` take to be imported.
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
