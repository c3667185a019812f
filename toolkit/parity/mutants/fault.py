"""Faults, and ways to make them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Modules that all ports have, by the name that faults have for them.
SHARED = {
    "paddle": "paddle",
    **{name: f"models.operations.{name}" for name in ("compiled", "losses", "ops", "randomness", "rows")},
    **{name: f"models.port.{name}" for name in ("adapter", "base", "lora", "tokenization")},
    "port_weights": "models.port.weights",
    "hub": "models.files.hub",
    **{name: f"toolkit.training.{name}" for name in ("optimizer", "trainer")},
}


class Modules:
    """What faults change: the modules that all ports have, and those of ``models/FAMILY``. Each is imported on use."""

    def __init__(self, family: str) -> None:
        self._family = family

    def __getattr__(self, name: str) -> Any:
        return importlib.import_module(SHARED.get(name) or f"models.{self._family}.{name}")


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: short, unique.
        fault: what is wrong, in a line.
        expected: what the name of the culprit must contain.
        operation: what the name of the first operation that is wrong by itself must contain; empty where the fault is
            in none (the tokenizer, a draw, a recomputed backward), or where one place is as good as another.
        apply: takes the :class:`Modules` and gives (owner, attribute, value) to be set.
        family: whose modules; "" if the fault needs only what all ports have.
        tokenizer, loader, initialisation: whether the fault is not in the model but in the tokenizer, in what reads a
            checkpoint, or in what makes new weights.
        draws: whether the fault is in the port's own random draws. A trial of any other real fault leaves them out.
        settings: settings of the port (:attr:`toolkit.parity.job.job.Job.port`) without which the fault is not seen.
        dtype: in which it is tried.
        harmless: the mathematical reason why the fault changes nothing; empty for a real fault.
        unreached: why the batch of the trial cannot show the fault; empty if it can. Such a fault stays a real one.
    """

    name: str
    fault: str
    expected: str
    apply: Callable[[Modules], list[tuple[Any, str, Any]]]
    family: str = ""
    harmless: str = ""
    unreached: str = ""
    operation: str = ""
    tokenizer: bool = False
    loader: bool = False
    initialisation: bool = False
    draws: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dtype: str = "float64"

    @property
    def is_of_the_step(self) -> bool:
        """Whether the model's step or its draws may show the fault."""
        return not (self.tokenizer or self.loader or self.initialisation)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Put the fault into the port inside the ``with`` block."""
        with contextlib.ExitStack() as undo:
            for owner, attribute, value in self.apply(Modules(self.family)):
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
    """Change a layer right after it is made."""

    def changed(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        change(self)

    return around(owner, "__init__", changed)


def settings(layer, **values) -> None:
    for name, value in values.items():
        setattr(layer, name, value)
