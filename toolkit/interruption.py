"""Ctrl-C and SIGTERM as a request to stop after the running step; a second one ends the process at once."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

#: Exit status of a program that Ctrl-C ended.
INTERRUPTED = 130


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a termination signal arrived; the checkpoint is written."""


class Interruption:
    """Turns the first Ctrl-C or SIGTERM into a request to stop after the running step; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._before = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: Any) -> None:
        if self.requested:
            leave_at_once()
        self.requested = True


@contextlib.contextmanager
def second_interrupt_ends() -> Iterator[Callable[[], bool]]:
    """Ctrl-C raises KeyboardInterrupt, as ever; a second one, while that tidies up, ends the process at once.

    Yields a function that says whether there was one: some libraries make another exception of it.
    """
    came = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal came
        if came:
            leave_at_once()
        came = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # a thread's, or of a job in the background
        yield lambda: False
        return
    signal.signal(signal.SIGINT, interrupt)
    # Python gives its handlers up before its libraries are taken down: a Ctrl-C in that time would kill what has ended
    # with a status of its own. First to be registered is last to be called.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, (lambda *_: os._exit(INTERRUPTED)) if came else signal.default_int_handler)


def leave_at_once() -> NoReturn:
    """End the process without tidying up: a KeyboardInterrupt would pass through libraries that lose it. What is
    written appears whole or not at all, and the gate's workers end with their parent."""
    if os.isatty(1):
        os.write(1, b"\x1b[?25h")  # a progress bar hides the cursor
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
