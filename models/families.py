"""The model families by name, and where their parts are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

FAMILIES = ("reformer", "ctrl")


def lazy(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return ``__all__`` and ``__getattr__`` of a package that imports its names on first use.

    Args:
        homes: name -> the module of the package that has it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return list(homes), get


def part(family: str, name: str) -> ModuleType:
    """``schema``, ``weights``, ``tokenizer`` (they need no Paddle) or ``config``, ``modeling`` of ``models/FAMILY``."""
    return importlib.import_module(f"models.{family}.{name}")
