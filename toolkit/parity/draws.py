"""Names for random draws and module outputs that mean the same in both frameworks.

A draw is named after the module that asks for it and a count: ``dropout:encoder.layers.0.attention.output#0``. The
count starts anew whenever an enclosing module is entered, so that a block which runs a second time, as in a reversible
backward, asks for the same names, while a block called once per chunk asks for one each time.
"""

from __future__ import annotations

from collections import Counter


class ModuleStack:
    """Which module is running, and how often it has asked for something since its parent was entered."""

    def __init__(self) -> None:
        self._running: list[str] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def enter(self, module: str) -> None:
        """``module`` (its dotted path, "" for the model itself) starts; what lies inside it is counted from 0."""
        self._running.append(module)
        inside = f"{module}." if module else ""
        for key in [key for key in self._counts if key[1].startswith(inside) and key[1] != module]:
            del self._counts[key]

    def leave(self) -> None:
        """The module entered last is done."""
        self._running.pop()

    def name(self, kind: str, module: str | None = None) -> str:
        """The name of the next ``kind`` (dropout, normal, output, ...) of ``module``, or of the one that is running."""
        module = module if module is not None else (self._running[-1] if self._running else "")
        count = self._counts[kind, module]
        self._counts[kind, module] += 1
        return f"{kind}:{module}#{count}"
