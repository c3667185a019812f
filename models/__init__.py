"""Ports of Reformer and CTRL to Paddle. This package imports no framework, and keeps Python's signal handlers.

Paddle's core installs its own signal handlers. On SIGTERM they print a C++ trace and end the process by that signal;
now and then they wait forever for a lock if the process is ending. This package therefore restores Python's handlers as
soon as the core has replaced them. ``paddle.disable_signal_handler`` is not enough. It runs a second later, after the
import, and also removes Python's own handler of SIGTERM, which Python then believes to be still installed.
"""

from __future__ import annotations

import importlib.machinery
import signal
import sys
import types
from typing import Any

#: Signals that Paddle handles.
PADDLE_SIGNALS = (signal.SIGTERM, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
#: The module of Paddle that installs the handlers.
CORE_MODULE = "paddle.base.core"


class _CoreFinder:
    """A finder of Paddle's core, which patches the core as soon as it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the import spec of Paddle's core module, whose loader patches it; None for any other module.

        Args:
            name: full name of the module that is imported.
            path: folders that Python searches.
            target: reloaded module; not used.
        """
        if name != CORE_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(loader := spec.loader, importlib.machinery.SourceFileLoader):
            run = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _patch_core(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _keep_signal_handlers() -> None:
    """Patch Paddle's core, now if it is imported already, and otherwise when it is imported."""
    if CORE_MODULE in sys.modules:
        _patch_core(sys.modules[CORE_MODULE])
        sys.modules[CORE_MODULE].init_glog("")  # a second call does not install the handlers again
    elif not any(isinstance(finder, _CoreFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CoreFinder())


def _patch_core(core: Any) -> None:
    """Let the core's initialization restore the signal handlers that it replaces."""
    install_handlers, remove_handlers = core.init_glog, core.disable_signal_handler

    def init_glog(program: str) -> None:
        previous_handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in PADDLE_SIGNALS}
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        install_handlers(program)
        try:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
        except ValueError:  # only the main thread may set handlers
            remove_handlers()
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

    core.init_glog = init_glog
    # No handler of Paddle is left, and the original function would remove Python's handlers.
    core.disable_signal_handler = lambda: None


_keep_signal_handlers()
