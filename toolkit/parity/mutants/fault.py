"""Faults, and how they are read from a file or made."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.parity.mutants.edits import SourceEdit, edited_functions

#: Modules that all ports have, by the name that faults have for them.
SHARED = {
    "paddle": "paddle",
    **{name: f"models.operations.{name}" for name in ("compiled", "ops", "randomness")},
    "hub": "models.files.hub",
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
        edits: of the port's source.
        kind: the kind of fault, by which the documents count: the stem of the YAML file that the fault is from.
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
    apply: Callable[[Modules], list[tuple[Any, str, Any]]] = lambda port: []
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
    edits: tuple[SourceEdit, ...] = ()
    kind: str = ""

    @property
    def is_of_the_step(self) -> bool:
        """Whether the model's step or its draws may show the fault."""
        return not (self.tokenizer or self.loader or self.initialisation)

    @property
    def is_of_an_operation(self) -> bool:
        """Whether the operations in isolation must name the fault, or may be all that shows it."""
        return self.is_of_the_step and (self.operation != "" or self.dtype != "float64")

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Put the fault into the port inside the ``with`` block."""
        with edited_functions(self.edits), contextlib.ExitStack() as undo:
            for owner, attribute, value in self.apply(Modules(self.family)):
                if attribute in vars(owner):
                    undo.callback(setattr, owner, attribute, vars(owner)[attribute])
                else:  # inherited
                    undo.callback(delattr, owner, attribute)
                setattr(owner, attribute, value)
            yield


def read_faults(path: Path, prefix: str = "") -> tuple[Mutant, ...]:
    """Return the faults of a YAML file. Each edits the source of one or several functions.

    The first key of a fault is its name; the value describes it. ``culprit`` is :attr:`Mutant.expected`. ``function``,
    ``removed`` and ``added`` are the attributes of a :class:`.SourceEdit`. If there are several functions or edits,
    ``function`` is a list, or ``edits`` lists the keys of each edit. The other keys are attributes of :class:`Mutant`.
    The file is a group: ``faults`` is a list of faults and of smaller groups, and the other keys apply to all of them.

    Args:
        prefix: begins all names.
    """
    import yaml  # the interpreter of a user's port may not have it, and tries no fault of a file

    group = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(_make_fault(prefix, path.stem, keys) for keys in _keys_of_faults(group, {"culprit": ""}))


def _keys_of_faults(group: dict[str, Any], inherited: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the keys of each fault of a group, with those of the groups around it."""
    inherited = {**inherited, **{key: value for key, value in group.items() if key != "faults"}}
    for entry in group["faults"]:
        if "faults" in entry:
            yield from _keys_of_faults(entry, inherited)
        else:
            (name, fault), *others = entry.items()
            yield {**inherited, **dict(others), "name": name, "fault": fault}


def _make_fault(prefix: str, kind: str, keys: dict[str, Any]) -> Mutant:
    common = {key: keys.pop(key) for key in ("function", "removed", "added") if key in keys}
    edits = []
    for own in keys.pop("edits", [{}]):
        edit = {**common, **own}
        functions = edit.pop("function")
        edits += [SourceEdit(name, **edit) for name in ([functions] if isinstance(functions, str) else functions)]
    name, expected = prefix + keys.pop("name"), keys.pop("culprit")
    return Mutant(name=name, expected=expected, edits=tuple(edits), kind=kind, **keys)


def around(owner, attribute: str, change: Callable) -> list[tuple[Any, str, Any]]:
    """Replace a method by ``change(original, self, *args)``."""
    original = getattr(owner, attribute)

    def changed(self, *args, **kwargs):
        return change(original, self, *args, **kwargs)

    return [(owner, attribute, changed)]
