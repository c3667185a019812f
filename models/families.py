"""The model families, found by scanning the folders here. Finding and describing them imports no framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class ModelFamily:
    """What is known of a family before any module of its port is imported: ``FAMILY`` of ``models/NAME/family.py``.

    Attributes:
        title: its name in texts.
        heads: that its port can have.
        tokenizers: kinds that a recipe may name -> the file that one is read from, in words; "" where one is neither
            read nor trained. The first is the default.
        checkpoints: examples of its repositories on the hub, for error messages.
        settings: keys of a recipe's ``model`` section that its port takes -> their values; the first is the default.
        recipe_keys: other keys of a recipe that only some families know -> their defaults.
        constants: attributes of its body: tables that it computes, with a row per position.
        table_key: key of its configuration with the shape of its position table; "" if no such table is learned.
        causal_key: key that makes it causal; "" if it always is.
        seed_key: key with the seed of what it draws in evaluation; "" if it draws nothing there.
        in_transformers: the class of its configuration there; "" if it has none.
        drafted: heads for which `toolkit recipe new` proposes it (``draft`` of its folder).
        is_default: whether a recipe that names no family means this one.
    """

    title: str
    heads: tuple[str, ...]
    tokenizers: Mapping[str, str]
    checkpoints: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    recipe_keys: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    table_key: str = ""
    causal_key: str = ""
    seed_key: str = ""
    in_transformers: str = ""
    drafted: tuple[str, ...] = ()
    is_default: bool = False


#: Their names.
FAMILIES = tuple(sorted(path.parent.name for path in _HERE.glob("*/family.py")))


def having(module: str) -> list[str]:
    """Return the families whose folder has a module of this name."""
    return [name for name in FAMILIES if (_HERE / name / f"{module}.py").is_file()]


def family(name: str) -> ModelFamily:
    """Return what is known of one of :data:`FAMILIES`."""
    return part(name, "family").FAMILY


def default() -> str:
    """Return the family of a recipe that names none."""
    return next(name for name in FAMILIES if family(name).is_default)


def listed(names: Iterable[str]) -> str:
    """Return the families' titles, in words."""
    return " and ".join(family(name).title for name in names)


def lazy(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return ``__all__`` and ``__getattr__`` of a package that imports its names on first use; ``homes`` maps each name
    to the module that has it."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return list(homes), get


def part(family: str, name: str) -> ModuleType:
    """``schema``, ``weights``, ``tokenizer`` (they need no Paddle) or ``config``, ``modeling`` of ``models/FAMILY``."""
    return importlib.import_module(f"models.{family}.{name}")
