"""The ports. Importing this package imports nothing heavy, and keeps Paddle, whoever imports it, from handling signals.

Paddle's handlers are undone as soon as it sets them. On SIGTERM they print a C++ trace and end the process by that
signal; now and then they hang on a lock if it comes while the process ends. ``paddle.disable_signal_handler`` comes
a second late, after the import, and also removes Python's own handler of SIGTERM, which Python still believes to be
there.
"""

from __future__ import annotations

import importlib.machinery
import signal
import sys
import types
from typing import Any

#: Signals that Paddle handles.
TAKEN = (signal.SIGTERM, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
MODULE = "paddle.base.core"


class _Finder:
    """Finds Paddle's core as Python does, and patches it once it has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(loader := spec.loader, importlib.machinery.SourceFileLoader):
            run = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _let_signals_alone(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _take_back() -> None:
    """Keep Python's signal handlers when Paddle is imported."""
    if MODULE in sys.modules:
        _let_signals_alone(sys.modules[MODULE])
        sys.modules[MODULE].init_glog("")  # a second call sets nothing
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _let_signals_alone(core: Any) -> None:
    set_handlers, remove_handlers = core.init_glog, core.disable_signal_handler

    def init_glog(name: str) -> None:
        before = {number: signal.getsignal(number) or signal.SIG_DFL for number in TAKEN}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        set_handlers(name)
        try:
            for number, handler in before.items():
                signal.signal(number, handler)
        except ValueError:  # a thread may not
            remove_handlers()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    core.init_glog = init_glog
    core.disable_signal_handler = lambda: None  # there are none, and it would remove Python's


_take_back()
