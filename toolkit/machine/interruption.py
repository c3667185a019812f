"""Signals that ask a command to end: Ctrl-C, SIGTERM from Slurm and Kubernetes, SIGHUP when a terminal is closed.

The rules are the same at every moment. The first signal raises :class:`SignalInterrupt` in the main thread. Code that
has something to save delays the exception (:func:`note_signals`, :func:`hold_signals`). A second signal ends the
process at once. A thread ends the process :data:`GRACE_SECONDS` seconds after the first signal: a library may lose the
exception, wait for its own thread, or compute for long before Python calls a handler. No data is lost by that: files
appear whole or not at all, and the janitor removes children and temporary folders (:mod:`toolkit.machine.scratch`).
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

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Exit statuses of a command that a signal has ended, as a shell counts them: 130, 143, 129.
EXIT_STATUSES = frozenset(128 + number for number in ENDING_SIGNALS)
#: Seconds for cleaning up and saving, unless the code has delayed the signals.
GRACE_SECONDS = 4.0
#: Signals within this many seconds count as one request: a launcher forwards a signal that all processes received.
SAME_REQUEST_SECONDS = 0.5
#: Seconds between two checks of the thread after a signal has arrived.
POLL_SECONDS = 0.1


class SignalInterrupt(KeyboardInterrupt):
    """A signal asked the command to end, and everything that must be saved is saved."""


class _SignalState:
    """Signal state of this process.

    Attributes:
        first_signal: number of the first signal that arrived; 0 before.
        raises: whether a signal raises; otherwise the running code checks :func:`has_signal`.
        status: exit status of the finished command; None before it has finished.
        replaced_handlers: signal number -> handler that :func:`begin_handling` replaced; None if it was not called.
        wakeup: descriptor that wakes the thread at a signal, and the descriptor that it replaced.
        terminals: descriptors of the standard streams that were terminals.
    """

    first_signal: int = 0
    raises: bool = True
    status: int | None = None
    replaced_handlers: dict[int, Any] | None = None
    wakeup: tuple[int, int] = (-1, -1)
    terminals: tuple[int, ...] = ()


_state = _SignalState()


def begin_handling() -> bool:
    """Install the signal handlers; return False if they are installed already or this is not the main thread.

    An ignored signal stays ignored: a shell runs the command in the background, or ``nohup`` does. A signal that was
    blocked until this process could handle it arrives now (:func:`toolkit.machine.scratch.child_process`).
    """
    if _state.replaced_handlers is not None or threading.current_thread() is not threading.main_thread():
        return False
    default_handlers = (signal.SIG_DFL, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # the thread stays blocked: the main one gets them
    _state.first_signal, _state.status = 0, None
    _state.terminals = tuple(stream for stream in (0, 1, 2) if os.isatty(stream))
    handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    _state.replaced_handlers = {number: handler for number, handler in handlers.items() if handler in default_handlers}
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    threading.Thread(target=_watch_signals, args=[read_end], daemon=True).start()
    _state.wakeup = write_end, signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in _state.replaced_handlers:
        signal.signal(number, _handle_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    return True


def end_handling() -> None:
    """Restore the earlier signal handlers, and forget the signal that arrived."""
    for number, handler in (_state.replaced_handlers or {}).items():
        signal.signal(number, handler)
    write_end, previous_wakeup = _state.wakeup
    signal.set_wakeup_fd(previous_wakeup)
    os.close(write_end)
    _state.first_signal, _state.replaced_handlers = 0, None


def record_exit_status(status: int) -> None:
    """Record that the command has finished, so that no later signal changes its exit status."""
    _state.status = status


def has_signal() -> bool:
    """Return whether a signal has asked the command to end."""
    return bool(_state.first_signal)


def exit_status() -> int:
    """Return the exit status of a command that the arrived signal ends."""
    return 128 + (_state.first_signal or signal.SIGINT)


def interruption_message() -> str:
    """Return the message about the signal that arrived."""
    return (
        "interrupted"
        if _state.first_signal in (0, signal.SIGINT)
        else f"interrupted by {signal_name(_state.first_signal)}"
    )


def end_process(status: int) -> NoReturn:
    """End the process with this exit status, which no later signal changes.

    The exit handlers run, but no library is unloaded: Python has no signal handlers then, and Paddle's destructors take
    a while, or fail if this process has met others to train with.
    """
    record_exit_status(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


@contextlib.contextmanager
def note_signals() -> Iterator[None]:
    """Record signals in the ``with`` block without raising; its code checks :func:`has_signal`, saves and returns.

    Calls :func:`begin_handling` for the block if the handlers are not installed yet.
    """
    begins_here = begin_handling()
    try:
        with _set_raising(raises=False):
            yield
    finally:
        if begins_here:
            end_handling()


@contextlib.contextmanager
def raise_signals() -> Iterator[None]:
    """Let signals raise in this ``with`` block inside a block of :func:`note_signals`."""
    if _state.first_signal:
        raise SignalInterrupt
    with _set_raising(raises=True):
        yield


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Delay a signal until the end of the ``with`` block, for short work that must not be interrupted."""
    if not _state.raises or threading.current_thread() is not threading.main_thread():
        yield  # a signal does not raise here
        return
    earlier_signal = _state.first_signal
    with _set_raising(raises=False):
        yield
    if _state.first_signal != earlier_signal and _state.status is None:
        raise SignalInterrupt


@contextlib.contextmanager
def _set_raising(*, raises: bool) -> Iterator[None]:
    """Set whether a signal raises an exception in the ``with`` block, and restore the former setting."""
    raised_before, _state.raises = _state.raises, raises
    try:
        yield
    finally:
        _state.raises = raised_before


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Block the signals for processes started in the ``with`` block, until they call :func:`begin_handling`."""
    earlier_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)


def _handle_signal(signal_number: int, frame: Any) -> None:
    """Handle the first signal in the main thread; the watching thread handles later signals."""
    if signal_number == signal.SIGHUP:
        _redirect_closed_terminals()
    if _state.first_signal:
        return
    _state.first_signal = signal_number
    if _state.raises and _state.status is None:
        raise SignalInterrupt


def _redirect_closed_terminals() -> None:
    """Redirect the streams of a closed terminal to the null device, because writing to the terminal would fail."""
    for descriptor in _state.terminals:
        if not os.isatty(descriptor):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)


def _watch_signals(read_end: int) -> None:
    """End the process at a second signal, or if the main thread has not ended within :data:`GRACE_SECONDS`."""
    first_signal, begin_time, last_work_time = 0, 0.0, 0.0
    while True:
        ready = select.select([read_end], [], [], POLL_SECONDS if first_signal else None)[0]
        signal_bytes, now = os.read(read_end, 64) if ready else b"", time.monotonic()
        if ready and not signal_bytes:
            os.close(read_end)
            return
        for number in signal_bytes:
            if number in ENDING_SIGNALS and not first_signal:
                first_signal, begin_time, last_work_time = number, now, now
            elif number in ENDING_SIGNALS and number != signal.SIGHUP and now - begin_time > SAME_REQUEST_SECONDS:
                _end_at_once(first_signal)
        if not _state.raises:
            last_work_time = now
        if first_signal and now - last_work_time > GRACE_SECONDS:
            _end_at_once(first_signal)


def _end_at_once(first_signal: int) -> NoReturn:
    """End the process from the watching thread; Python may not have called the handler of the first signal yet."""
    _state.first_signal = _state.first_signal or first_signal
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # a progress bar hides the cursor
        if _state.status is None and select.select([], [2], [], 0)[1]:  # the other end may not be read
            os.write(2, interruption_message().encode() + b"\n")
    os._exit(exit_status() if _state.status is None else _state.status)


def signal_name(signal_number: int) -> str:
    """Return the name of a signal, or ``signal N`` if Python has no name for it."""
    try:
        return signal.Signals(signal_number).name
    except ValueError:
        return f"signal {signal_number}"
