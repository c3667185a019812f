"""The parity gate: is the Paddle port the same function, with the same gradients, as the PyTorch reference?

``README.md`` beside this file is its specification. These three names are all that training uses of it; they are
imported when they are asked for, since a recipe is checked without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.parity.gate import run_gate
    from toolkit.parity.job.request import GateRequest
    from toolkit.parity.report.report import Report

__all__ = ["GateRequest", "Report", "run_gate"]


def __getattr__(name: str) -> Any:
    import importlib

    homes = {"run_gate": "gate", "GateRequest": "job.request", "Report": "report.report"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{homes[name]}"), name)
