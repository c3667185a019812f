"""The parity gate: is the Paddle port the same function, with the same gradients, as the PyTorch reference?

``README.md`` in this folder is its specification. Other packages use only the names below. They are imported on first
use, since a recipe is checked without them. The gate may import `training` and the packages below it. Begin with
`gate.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.families import lazy_exports

if TYPE_CHECKING:
    from toolkit.parity.exchange.results import JudgedTrainer as JudgedTrainer
    from toolkit.parity.gate import run_gate as run_gate
    from toolkit.parity.inputs.synthetic import SyntheticWeights as SyntheticWeights
    from toolkit.parity.inputs.synthetic import randomize_constants as randomize_constants
    from toolkit.parity.job.family import ported_family as ported_family
    from toolkit.parity.job.job import TrainingSettings as TrainingSettings
    from toolkit.parity.job.tokenizers import tokenizer_in as tokenizer_in
    from toolkit.parity.judge.bounds import float32_bounds as float32_bounds
    from toolkit.parity.options import make_request as make_request
    from toolkit.parity.processes.interpreter import reference_interpreter as reference_interpreter
    from toolkit.parity.processes.launch import worker_environment as worker_environment
    from toolkit.parity.processes.pickles import safetensors_folder as safetensors_folder
    from toolkit.parity.report.report import CONSTANTS as CONSTANTS
    from toolkit.parity.report.report import Report as Report
    from toolkit.parity.report.report import remove_report as remove_report
    from toolkit.parity.request.gate_options import GateOptions as GateOptions
    from toolkit.parity.request.request import GateRequest as GateRequest
    from toolkit.parity.request.request import dtypes_of as dtypes_of
    from toolkit.parity.request.stretch import gate_memory as gate_memory
    from toolkit.parity.require import require_parity as require_parity

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "CONSTANTS": "report.report",
        "GateOptions": "request.gate_options",
        "GateRequest": "request.request",
        "JudgedTrainer": "exchange.results",
        "Report": "report.report",
        "SyntheticWeights": "inputs.synthetic",
        "TrainingSettings": "job.job",
        "dtypes_of": "request.request",
        "float32_bounds": "judge.bounds",
        "gate_memory": "request.stretch",
        "ported_family": "job.family",
        "make_request": "options",
        "randomize_constants": "inputs.synthetic",
        "reference_interpreter": "processes.interpreter",
        "remove_report": "report.report",
        "require_parity": "require",
        "run_gate": "gate",
        "safetensors_folder": "processes.pickles",
        "tokenizer_in": "job.tokenizers",
        "worker_environment": "processes.launch",
    },
)
