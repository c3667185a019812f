"""Signals that ask a command to end: Ctrl-C, SIGTERM from Slurm and Kubernetes, SIGHUP when a terminal is closed.

The rules are the same at every moment. The first signal raises :class:`Interrupted` in the main thread; if something
is to be saved, it is a request that is noticed at the next good place (:class:`Interruption`). A second one ends the
process at once. Besides, a thread ends the process :data:`GRACE` seconds later: a library may lose the exception, wait
for a thread of its own, or compute for long before Python calls a handler. Nothing is lost by that: files appear whole
or not at all, and the janitor removes children and temporary folders (:mod:`toolkit.machine.scratch`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Exit statuses of a command that a signal has ended, as a shell counts them: 130, 143, 129.
STATUSES = frozenset(128 + number for number in ENDING)
#: Seconds to tidy up in, and to save where nobody has asked for more.
GRACE = 4.0
#: Signals within this many seconds are one: a launcher forwards what the system already sent to all processes.
ONE_REQUEST = 0.5
#: Seconds between two looks of the thread, once a signal has come.
INTERVAL = 0.1


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end; what is to be saved is saved."""


class _Here:
    """Signal state of this process.

    Attributes:
        came: the first signal; 0 where none has come.
        waiting: who handles the end itself; None if a signal raises.
        status: exit status of a finished command; else None.
        before: the handlers that :func:`begin` has replaced.
        wakeup: descriptor that tells the thread of signals, and the former one.
        terminals: those of the standard streams that were terminals.
    """

    came: int = 0
    waiting: Interruption | None = None
    status: int | None = None
    before: dict[int, Any] | None = None
    wakeup: tuple[int, int] = (-1, -1)
    terminals: tuple[int, ...] = ()


_here = _Here()
_leaving = threading.Lock()


def begin() -> bool:
    """Handle the signals from now on; return False if begun already, or in a thread, which may not.

    An ignored signal stays ignored: a shell runs the command in the background, or ``nohup`` does. One that was
    blocked until this process could handle it comes now (:func:`toolkit.machine.scratch.child`,
    :mod:`toolkit.machine.allocator`).
    """
    if _here.before is not None or threading.current_thread() is not threading.main_thread():
        return False
    usual = (signal.SIG_DFL, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the thread stays blocked: the main one gets them
    _here.came, _here.status = 0, None
    _here.terminals = tuple(stream for stream in (0, 1, 2) if os.isatty(stream))
    _here.before = {number: signal.getsignal(number) for number in ENDING if signal.getsignal(number) in usual}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_watch, args=[reading], daemon=True).start()
    _here.wakeup = writing, signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    atexit.unregister(_ignore)
    atexit.register(_ignore)
    for number in _here.before:
        signal.signal(number, _arrived)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return True


def end() -> None:
    """Undo :func:`begin`."""
    for number, handler in (_here.before or {}).items():
        signal.signal(number, handler)
    writing, before = _here.wakeup
    signal.set_wakeup_fd(before)
    os.close(writing)
    _here.before = None


def settle(status: int) -> None:
    """Record that the command is done; no signal changes its exit status any more."""
    _here.status = status


def came() -> bool:
    """Whether a signal has asked for the end."""
    return bool(_here.came)


def exit_status() -> int:
    """Exit status after the signal that came."""
    return 128 + (_here.came or signal.SIGINT)


def line() -> str:
    """Message about it."""
    return _line(_here.came)


def leave(status: int) -> NoReturn:
    """Run the exit handlers and end the process, before its libraries are unloaded."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


class Interruption:
    """Keeps signals from raising in the ``with`` block: its code checks ``requested``, saves, and leaves."""

    def __init__(self) -> None:
        self.requested = False
        self._began = False

    def __enter__(self) -> Interruption:
        self._began = begin()
        self._around, _here.waiting = _here.waiting, self
        self.requested = bool(_here.came)  # a library has lost it
        return self

    def __exit__(self, *exception: object) -> None:
        _here.waiting = self._around
        if self._began:
            end()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Let signals raise in the ``with`` block."""
        if self.requested:
            raise Interrupted
        waiting, _here.waiting = _here.waiting, None
        try:
            yield
        finally:
            _here.waiting = waiting


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Delay a signal that comes in the ``with`` block to its end: for short work that must be done whole."""
    if _here.waiting is not None or threading.current_thread() is not threading.main_thread():
        yield  # it raises nothing here
        return
    _here.waiting = request = Interruption()
    try:
        yield
    finally:
        _here.waiting = None
    if request.requested and _here.status is None:
        raise Interrupted


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the signals for what is started in the ``with`` block, until it asks for them (:func:`begin`)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _arrived(number: int, frame: Any) -> None:
    """Handle a signal in the main thread; the thread handles later ones."""
    if number == signal.SIGHUP:
        _let_go_of_terminals()
    if _here.came:
        return
    _here.came = number
    if _here.waiting is not None:
        _here.waiting.requested = True
    elif _here.status is None:
        raise Interrupted


def _let_go_of_terminals() -> None:
    """Redirect streams of a closed terminal to nowhere: writing to it would be an error."""
    for stream in _here.terminals:
        if not os.isatty(stream):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)


def _watch(reading: int) -> None:
    """End the process when a second signal comes, or when nobody has saved or tidied up for too long."""
    first, began, working = 0, 0.0, 0.0
    while True:
        ready = select.select([reading], [], [], INTERVAL if first else None)[0]
        told, now = os.read(reading, 64) if ready else b"", time.monotonic()
        if ready and not told:
            os.close(reading)
            return
        for number in told:
            if number in ENDING and not first:
                first, began, working = number, now, now
            elif number in ENDING and number != signal.SIGHUP and now - began > ONE_REQUEST:
                _leave_at_once(first)
        if _here.waiting is not None:
            working = now
        if first and now - working > GRACE:
            _leave_at_once(first)


def _leave_at_once(number: int) -> None:
    if not _leaving.acquire(blocking=False):
        return
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # a progress bar hides the cursor
        if _here.status is None and select.select([], [2], [], 0)[1]:  # nobody may read what is written there
            os.write(2, _line(number).encode() + b"\n")
    os._exit(128 + number if _here.status is None else _here.status)


def name_of(number: int) -> str:
    """A signal's name, as far as Python knows it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _line(number: int) -> str:
    return f"interrupted by {signal.Signals(number).name}" if number not in (0, signal.SIGINT) else "interrupted"


def _ignore() -> None:
    """Ignore further signals. Python drops its signal handlers before it unloads libraries; a signal then would replace
    the exit status of a finished program. What is registered first is called last."""
    for number in _here.before or ():
        signal.signal(number, signal.SIG_IGN)
