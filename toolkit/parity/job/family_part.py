"""Imports the gate's modules for a single model."""

from __future__ import annotations

import importlib
from types import ModuleType


def family_part(model: str, name: str) -> ModuleType:
    """A module of ``toolkit/parity/families/MODEL``, imported on request: ``candidate`` needs Paddle, ``reference``
    torch, the others neither. ``model`` is one of ``models.families.FAMILIES``, or :data:`.pair.PAIR`."""
    return importlib.import_module(f"toolkit.parity.families.{model}.{name}")
