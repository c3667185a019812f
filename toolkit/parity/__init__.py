"""The parity gate: is the Paddle port the same function, with the same gradients, as the PyTorch reference?

``README.md`` beside this file is its specification. These names are all that training uses of it; they are imported
when they are asked for, since a recipe is checked without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.parity.gate import run_gate
    from toolkit.parity.job.interpreter import reference_interpreter
    from toolkit.parity.job.job import TrainingSettings
    from toolkit.parity.job.pickles import safetensors_folder
    from toolkit.parity.job.request import GateRequest, dtypes_of
    from toolkit.parity.job.results import Judged
    from toolkit.parity.job.stretch import gate_memory
    from toolkit.parity.job.synthetic import randomize_constants
    from toolkit.parity.job.tokenizers import tokenizer_in
    from toolkit.parity.report.report import CONSTANTS, Report, remove_report
    from toolkit.parity.require import require_parity

_HOMES = {
    "CONSTANTS": "report.report",
    "GateRequest": "job.request",
    "gate_memory": "job.stretch",
    "Judged": "job.results",
    "Report": "report.report",
    "TrainingSettings": "job.job",
    "dtypes_of": "job.request",
    "randomize_constants": "job.synthetic",
    "reference_interpreter": "job.interpreter",
    "remove_report": "report.report",
    "require_parity": "require",
    "run_gate": "gate",
    "safetensors_folder": "job.pickles",
    "tokenizer_in": "job.tokenizers",
}
__all__ = [
    "CONSTANTS",
    "GateRequest",
    "Judged",
    "Report",
    "TrainingSettings",
    "dtypes_of",
    "gate_memory",
    "randomize_constants",
    "reference_interpreter",
    "remove_report",
    "require_parity",
    "run_gate",
    "safetensors_folder",
    "tokenizer_in",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
