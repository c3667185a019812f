"""Ctrl-C and SIGTERM as a request to stop after the running step."""

from __future__ import annotations

import signal
import threading
from typing import Any


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
            raise KeyboardInterrupt
        self.requested = True
