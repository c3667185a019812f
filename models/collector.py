"""Avoid the garbage collector's work while a large framework is imported, and at the end of a process."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator

_skips_collection = False


def skip_collection_at_exit() -> None:
    """Skip the garbage collection of imported objects, and of all objects at exit, in a process that runs one command.

    Objects of imports in :func:`pause_garbage_collection` are then never visited again. With Paddle this saves a second
    at exit, where the system frees the memory anyway. All other work at exit is done: Python flushes files, joins
    threads and calls the functions of `atexit`.
    """
    global _skips_collection
    if not _skips_collection:
        _skips_collection = True
        atexit.register(gc.freeze)


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Collect no garbage in the ``with`` block.

    An import creates hundreds of thousands of objects that stay, and the collector visits them again and again. This
    takes a fifth of the import time of Paddle, PaddleNLP and `datasets`.
    """
    was_enabled, num_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if _skips_collection and len(sys.modules) > num_modules:
            gc.freeze()
        if was_enabled:
            gc.enable()
