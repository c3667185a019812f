"""Where the parts are of what the gate knows of one model, and of no other."""

from __future__ import annotations

import importlib
from types import ModuleType


def family_part(model: str, name: str) -> ModuleType:
    """A module of ``toolkit/parity/families/MODEL``, imported when it is asked for: ``candidate`` needs Paddle,
    ``reference`` torch, the others neither.

    Args:
        model: one of ``models.families.FAMILIES``, or :data:`.pair.PAIR`.
    """
    return importlib.import_module(f"toolkit.parity.families.{model}.{name}")
