"""The single thread that computes answers. Paddle's settings are global, so requests cannot run in parallel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from toolkit.commands.label_file import AdvanceFn

Result = TypeVar("Result")

#: Maximum number of requests that are running or waiting.
MAX_QUEUE_LENGTH = 16


class QueueFullError(Exception):
    """The queue of requests is full."""


class _CanceledError(Exception):
    """The client no longer waits for the result."""


class Worker:
    """A thread with a queue of requests."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._places = threading.BoundedSemaphore(MAX_QUEUE_LENGTH)

    async def compute(self, work: Callable[[AdvanceFn], Result]) -> Result:
        """Run a function in the thread, and return its result.

        Args:
            work: function of a callback, which it calls repeatedly. After the caller was cancelled, the callback raises
                an exception that stops the function.

        Raises:
            QueueFullError: the queue is full.
        """
        if not self._places.acquire(blocking=False):
            raise QueueFullError
        cancel_event = threading.Event()

        def advance(count: int) -> None:
            if cancel_event.is_set():
                raise _CanceledError

        future = self._thread.submit(work, advance)
        future.add_done_callback(lambda _: self._places.release())
        try:
            return await asyncio.wrap_future(future)  # a future that has not started is canceled
        finally:
            cancel_event.set()
