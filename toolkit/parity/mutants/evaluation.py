"""Faults of a port in evaluation mode, which its training step does not show."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from toolkit.parity.mutants.fault import Modules


def drops(port: Modules, *modules: ModuleType) -> list[tuple[Any, str, Any]]:
    """Drop in evaluation, too, in those of the port's modules that have imported ``dropout``."""
    plain = port.randomness.dropout

    def dropout(x, p, training, mask_shape=None):
        return plain(x, p, True, mask_shape)

    return [(module, "dropout", dropout) for module in (port.randomness, *modules)]
