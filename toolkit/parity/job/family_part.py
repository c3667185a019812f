"""Import of the gate's modules for a single family."""

from __future__ import annotations

import importlib
from types import ModuleType


def family_part(model: str, name: str) -> ModuleType:
    """Return a module of ``toolkit/parity/families/MODEL``, which is imported on request.

    The module ``candidate`` needs Paddle, ``reference`` needs torch, and the others need neither.

    Args:
        model: one of ``models.families.FAMILIES``, or :data:`.pair.PAIR`.
        name: name of the module, such as ``reference``.
    """
    return importlib.import_module(f"toolkit.parity.families.{model}.{name}")
