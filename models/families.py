"""The model families by name: where the parts of each are found."""

from __future__ import annotations

import importlib
from types import ModuleType

FAMILIES = ("reformer", "ctrl")


def part(family: str, name: str) -> ModuleType:
    """``schema``, ``weights``, ``tokenizer`` (they need no Paddle) or ``config``, ``modeling`` of ``models/FAMILY``."""
    return importlib.import_module(f"models.{family}.{name}")
