"""Names for random draws and module outputs that mean the same in both frameworks.

A draw is named after the module that asks for it: ``dropout:encoder.layers.0.attention.output``. A module that its
parent calls more than once, as a chunked feed-forward calls its halves, adds the number of the call: ``...dense#2``.
The calls are counted within the parent's own call, so a block that runs a second time, as in a reversible backward,
asks for the same names again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


def numbered(name: str, number: int) -> str:
    """``name`` the first time, then ``name#2`` and so on: of what a short training repeats."""
    return name if number == 1 else f"{name}#{number}"


@dataclass
class _Call:
    """A module that is running: which call of its parent's it is, and what it has counted so far."""

    module: str
    number: int
    counts: Counter[str] = field(default_factory=Counter)


class ModuleStack:
    """Which modules are running, innermost last."""

    def __init__(self) -> None:
        self._calls = [_Call("", 0)]

    @property
    def module(self) -> str:
        """The path of the innermost module."""
        return self._calls[-1].module

    def enter(self, module: str) -> None:
        """``module`` (its dotted path, "" for the model itself) starts."""
        number = self._calls[-1].counts[module]
        self._calls[-1].counts[module] += 1
        self._calls.append(_Call(module, number))

    def leave(self, kind: str = "output") -> str:
        """The innermost module is done; returns the name of its output."""
        name = self._name(kind)
        self._calls.pop()
        return name

    def draw(self, kind: str) -> str:
        """The name of the next draw of ``kind`` (dropout, normal) by the innermost module, or of its next operation."""
        number = self.count(kind)
        return self._name(kind) + (f"@{number}" if number else "")

    def count(self, kind: str) -> int:
        """Count one more of ``kind`` in the innermost module; returns how many it has had before."""
        number = self._calls[-1].counts[kind]
        self._calls[-1].counts[kind] += 1
        return number

    def _name(self, kind: str) -> str:
        numbers = [str(call.number) for call in self._calls if call.number]
        return f"{kind}:{self._calls[-1].module}" + (f"#{'.'.join(numbers)}" if numbers else "")
