"""The description of a fault, its application to the running port, and the reading of faults from YAML files."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.parity.mutants.edits import SourceEdit, edited_functions

#: Modules that all ports use, by their attribute of :class:`PortModules`.
SHARED_MODULES = {
    "paddle": "paddle",
    **{name: f"models.operations.{name}" for name in ("compiled", "ops", "randomness")},
    "hub": "models.files.hub",
}


class PortModules:
    """Modules that faults change, as attributes: :data:`SHARED_MODULES` and ``models/FAMILY``.

    Each module is imported on use.
    """

    def __init__(self, family: str) -> None:
        self._family = family

    def __getattr__(self, name: str) -> Any:
        return importlib.import_module(SHARED_MODULES.get(name) or f"models.{self._family}.{name}")


@dataclass(frozen=True)
class Mutant:
    """One fault of a port, or a harmless change of it.

    Attributes:
        name: short unique name.
        fault: description of the fault in one line.
        culprit: text that the name of the culprit must contain.
        operation: text that the name of the first operation that differs in isolation must contain. Empty if no
            operation has the fault (the tokenizer, a draw, a recomputed backward), or if several may be named.
        apply: function that returns the owner, name and value of each attribute to set.
        edits: edits of the port's source.
        kind: kind of fault in the documents' counts: the stem of the YAML file.
        family: model family whose modules ``apply`` changes; "" if it changes only :data:`SHARED_MODULES`.
        tokenizer, loader, initialization: whether the fault is not in the model but in the tokenizer, in the loading of
            a checkpoint, or in the random initialization of the weights.
        draws: whether the fault is in the port's own random draws. A trial of any other real fault leaves them out.
        settings: settings of the port (:attr:`toolkit.parity.job.job.Job.port`) that show the fault.
        dtype: dtype of the trial.
        harmless: mathematical reason why the change has no effect; empty for a real fault.
        unreached_reason: reason why the batch of the trial cannot show the fault; empty if it can. Such a fault still
            counts as real.
    """

    name: str
    fault: str
    culprit: str
    apply: Callable[[PortModules], list[tuple[Any, str, Any]]] = lambda port: []
    family: str = ""
    harmless: str = ""
    unreached_reason: str = ""
    operation: str = ""
    tokenizer: bool = False
    loader: bool = False
    initialization: bool = False
    draws: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dtype: str = "float64"
    edits: tuple[SourceEdit, ...] = ()
    kind: str = ""

    @property
    def is_of_the_step(self) -> bool:
        """Whether a step of the model, or its random draws, can show the fault."""
        return not (self.tokenizer or self.loader or self.initialization)

    @property
    def is_of_an_operation(self) -> bool:
        """Whether the operations in isolation must name the fault, or only they may show it."""
        return self.is_of_the_step and (self.operation != "" or self.dtype != "float64")

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Apply the fault to the port inside the ``with`` block."""
        with edited_functions(self.edits), contextlib.ExitStack() as undo:
            for owner, attribute, value in self.apply(PortModules(self.family)):
                if attribute in vars(owner):
                    undo.callback(setattr, owner, attribute, vars(owner)[attribute])
                else:  # inherited
                    undo.callback(delattr, owner, attribute)
                setattr(owner, attribute, value)
            yield


def read_faults(path: Path, prefix: str = "") -> tuple[Mutant, ...]:
    """Return the faults of a YAML file. Each edits the source of one or several functions.

    The first key of a fault is its name; the value describes it. ``function``, ``removed`` and ``added`` are the
    attributes of a :class:`.SourceEdit`. If there are several functions or edits, ``function`` is a list, or ``edits``
    lists the keys of each edit. The other keys are attributes of :class:`Mutant`.

    The file is a group: ``faults`` is a list of faults and of smaller groups. The other keys of a group apply to each
    of its faults.

    Args:
        path: YAML file.
        prefix: text at the beginning of each fault's name.
    """
    import yaml  # the interpreter of a user's port may lack it, and needs no fault of a file

    group = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(_make_fault(prefix, path.stem, keys) for keys in _expand_group(group, {"culprit": ""}))


def _expand_group(group: dict[str, Any], inherited_keys: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the keys of each fault of a group, together with the keys of the groups around the fault."""
    inherited_keys = {**inherited_keys, **{key: value for key, value in group.items() if key != "faults"}}
    for entry in group["faults"]:
        if "faults" in entry:
            yield from _expand_group(entry, inherited_keys)
        else:
            (name, fault), *others = entry.items()
            yield {**inherited_keys, **dict(others), "name": name, "fault": fault}


def _make_fault(prefix: str, kind: str, fault_keys: dict[str, Any]) -> Mutant:
    """Return the mutant that an entry of a YAML file describes.

    Args:
        prefix: text before the mutant's name.
        kind: kind of the mutant.
        fault_keys: keys of the entry; those outside ``edits`` apply to all of its edits.
    """
    common_keys = {key: fault_keys.pop(key) for key in ("function", "removed", "added") if key in fault_keys}
    edits = []
    for edit_keys in fault_keys.pop("edits", [{}]):
        edit = {**common_keys, **edit_keys}
        functions = edit.pop("function")
        edits += [SourceEdit(name, **edit) for name in ([functions] if isinstance(functions, str) else functions)]
    return Mutant(name=prefix + fault_keys.pop("name"), edits=tuple(edits), kind=kind, **fault_keys)


def wrap_method(owner: Any, attribute: str, replacement: Callable) -> list[tuple[Any, str, Any]]:
    """Return the attribute that replaces a method by ``change(original, self, *args, **kwargs)``."""
    original = getattr(owner, attribute)

    def call_change(self, *args, **kwargs):
        return replacement(original, self, *args, **kwargs)

    return [(owner, attribute, call_change)]
