"""What a fault is, and ways to make one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: short, unique.
        fault: what is wrong, in a line.
        expected: what the name of the culprit must contain.
        operation: what the name of the first operation that is wrong by itself must contain; empty where the fault is
            in none (the tokenizer, a draw, a recomputed backward), or where one place is as good as another.
        apply: given the family's modules as a namespace, gives (owner, attribute, value) to be set.
        port: makes that namespace.
        tokenizer, loader, initialisation: whether the tokenizer is at fault, what reads a checkpoint, or what makes new
            weights, and not the model.
        settings: of the port (:attr:`toolkit.parity.job.job.Job.port`), in which alone the fault shows.
        dtype: in which it is tried.
        harmless: why the fault changes nothing, where mathematics says so; empty for a real fault.
    """

    name: str
    fault: str
    expected: str
    apply: Callable[[SimpleNamespace], list[tuple[Any, str, Any]]]
    port: Callable[[], SimpleNamespace]
    harmless: str = ""
    operation: str = ""
    tokenizer: bool = False
    loader: bool = False
    initialisation: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dtype: str = "float64"

    @property
    def is_of_the_step(self) -> bool:
        """Whether the model's step, or its draws, may show it."""
        return not (self.tokenizer or self.loader or self.initialisation)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """The port carries the fault inside the ``with`` block."""
        with contextlib.ExitStack() as undo:
            for owner, attribute, value in self.apply(self.port()):
                if attribute in vars(owner):
                    undo.callback(setattr, owner, attribute, vars(owner)[attribute])
                else:  # inherited
                    undo.callback(delattr, owner, attribute)
                setattr(owner, attribute, value)
            yield


def around(owner, attribute: str, change: Callable) -> list[tuple[Any, str, Any]]:
    """Replace a method by ``change(original, self, *args)``."""
    original = getattr(owner, attribute)

    def changed(self, *args, **kwargs):
        return change(original, self, *args, **kwargs)

    return [(owner, attribute, changed)]


def result(owner, attribute: str, change: Callable) -> list[tuple[Any, str, Any]]:
    """Change what a method returns."""
    return around(owner, attribute, lambda original, *args, **kwargs: change(original(*args, **kwargs)))


def built(owner, change: Callable) -> list[tuple[Any, str, Any]]:
    """Change a layer right after it was made."""

    def changed(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        change(self)

    return around(owner, "__init__", changed)


def settings(layer, **values) -> None:
    for name, value in values.items():
        setattr(layer, name, value)
