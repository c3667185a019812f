"""One thread that computes, since what Paddle is set to is shared by all: requests wait for each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from toolkit.commands.label_file import AdvanceFn

Result = TypeVar("Result")

#: Most requests that are computed or wait.
QUEUE = 16


class Full(Exception):
    """As many requests wait as may."""


class _Unwanted(Exception):
    """Nobody waits for the result any more."""


class Worker:
    """The thread, and the queue before it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._places = threading.BoundedSemaphore(QUEUE)

    async def compute(self, work: Callable[[AdvanceFn], Result]) -> Result:
        """Compute this when its turn comes. If the caller is cancelled, it stops when it next calls its argument.

        Raises:
            Full: the queue is.
        """
        if not self._places.acquire(blocking=False):
            raise Full
        unwanted = threading.Event()

        def advance(count: int) -> None:
            if unwanted.is_set():
                raise _Unwanted

        future = self._thread.submit(work, advance)
        future.add_done_callback(lambda _: self._places.release())
        try:
            return await asyncio.wrap_future(future)  # cancels it where it has not begun
        finally:
            unwanted.set()
