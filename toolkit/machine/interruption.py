"""Signals that ask a command to end: Ctrl-C, SIGTERM from Slurm and Kubernetes, SIGHUP when a terminal is closed.

The rules are the same at every moment. The first signal raises :class:`Interrupted` in the main thread; code that has
something to save delays that (:func:`note_signals`, :func:`hold_signals`). A second one ends the process at once.
Besides, a thread ends the process :data:`GRACE` seconds later: a library may lose the exception, wait for its own
thread, or compute for long before Python calls a handler. Nothing is lost by that: files appear whole or not at all,
and the janitor removes children and temporary folders (:mod:`toolkit.machine.scratch`).
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


class _State:
    """Signal state of this process.

    Attributes:
        came: the first signal; 0 if none has come.
        raises: whether a signal raises; otherwise the running code checks :func:`came`.
        status: exit status of a finished command; None before.
        replaced_handlers: the handlers that :func:`begin` has replaced, by signal; None if it has not begun.
        wakeup: descriptor that tells the thread of signals, and the former one.
        terminals: the standard streams that were terminals.
    """

    came: int = 0
    raises: bool = True
    status: int | None = None
    replaced_handlers: dict[int, Any] | None = None
    wakeup: tuple[int, int] = (-1, -1)
    terminals: tuple[int, ...] = ()


_state = _State()


def begin() -> bool:
    """Handle the signals from now on; return False if begun already, or in a thread, which may not.

    An ignored signal stays ignored: a shell runs the command in the background, or ``nohup`` does. One that was
    blocked until this process could handle it comes now (:func:`toolkit.machine.scratch.child`).
    """
    if _state.replaced_handlers is not None or threading.current_thread() is not threading.main_thread():
        return False
    usual = (signal.SIG_DFL, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the thread stays blocked: the main one gets them
    _state.came, _state.status = 0, None
    _state.terminals = tuple(stream for stream in (0, 1, 2) if os.isatty(stream))
    handlers = {number: signal.getsignal(number) for number in ENDING}
    _state.replaced_handlers = {number: handler for number, handler in handlers.items() if handler in usual}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_watch, args=[reading], daemon=True).start()
    _state.wakeup = writing, signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _state.replaced_handlers:
        signal.signal(number, _arrived)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return True


def end() -> None:
    """Undo :func:`begin`, and forget the signal that came."""
    for number, handler in (_state.replaced_handlers or {}).items():
        signal.signal(number, handler)
    writing, former = _state.wakeup
    signal.set_wakeup_fd(former)
    os.close(writing)
    _state.came, _state.replaced_handlers = 0, None


def settle(status: int) -> None:
    """Record that the command is done; no signal changes its exit status any more."""
    _state.status = status


def came() -> bool:
    """Whether a signal has asked for the end."""
    return bool(_state.came)


def exit_status() -> int:
    """Exit status after the signal that came."""
    return 128 + (_state.came or signal.SIGINT)


def line() -> str:
    """Return the message about the signal that came."""
    return "interrupted" if _state.came in (0, signal.SIGINT) else f"interrupted by {name_of(_state.came)}"


def leave(status: int) -> NoReturn:
    """End the process with this exit status, which no signal changes any more.

    The exit handlers run, but no library is unloaded: Python has no signal handlers then, and Paddle's destructors take
    a while, or fail if this process has met others to train with.
    """
    settle(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


@contextlib.contextmanager
def note_signals() -> Iterator[None]:
    """Keep signals from raising in the ``with`` block: its code checks :func:`came`, saves and leaves. Signals are
    handled from now on if :func:`begin` was not called before."""
    has_begun = begin()
    try:
        with _raising(False):
            yield
    finally:
        if has_begun:
            end()


@contextlib.contextmanager
def raise_signals() -> Iterator[None]:
    """Let signals raise in the ``with`` block, inside of :func:`note_signals`."""
    if _state.came:
        raise Interrupted
    with _raising(True):
        yield


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Delay a signal that comes in the ``with`` block to its end: for short work that must be done whole."""
    if not _state.raises or threading.current_thread() is not threading.main_thread():
        yield  # it raises nothing here
        return
    came_before = _state.came
    with _raising(False):
        yield
    if _state.came != came_before and _state.status is None:
        raise Interrupted


@contextlib.contextmanager
def _raising(raises: bool) -> Iterator[None]:
    before, _state.raises = _state.raises, raises
    try:
        yield
    finally:
        _state.raises = before


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
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
    if _state.came:
        return
    _state.came = number
    if _state.raises and _state.status is None:
        raise Interrupted


def _let_go_of_terminals() -> None:
    """Redirect streams of a closed terminal to nowhere: writing to it would be an error."""
    for stream in _state.terminals:
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
        if not _state.raises:
            working = now
        if first and now - working > GRACE:
            _leave_at_once(first)


def _leave_at_once(first: int) -> NoReturn:
    """End the process from the thread: Python may not have called the handler of the first signal yet."""
    _state.came = _state.came or first
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # a progress bar hides the cursor
        if _state.status is None and select.select([], [2], [], 0)[1]:  # nobody may read what is written there
            os.write(2, line().encode() + b"\n")
    os._exit(exit_status() if _state.status is None else _state.status)


def name_of(number: int) -> str:
    """A signal's name, as far as Python knows it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
