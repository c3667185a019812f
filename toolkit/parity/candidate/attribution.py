"""P32 again, with one kind of kernel the reference's: for a job whose float32 drifts, each kind in turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import reference_kernels
from toolkit.parity.candidate.step import make_step
from toolkit.parity.job.job import Job
from toolkit.parity.job.kernel_messages import KINDS
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorStats


def run(job: Job, folder: Path, kernels: KernelClient) -> dict[str, dict[str, TensorStats]]:
    """By kind, how far each tensor of P32 then lies from R64. A kind that the model does not use is left out."""
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    measured = {}
    for kind in KINDS:
        before = kernels.calls.total()
        errors = measure_with(kind, job, folder, truth, kernels)
        if kernels.calls.total() > before:
            measured[kind] = errors
    return measured


def measure_with(
    kind: str, job: Job, folder: Path, truth: Mapping[str, np.ndarray], kernels: KernelClient
) -> dict[str, TensorStats]:
    """The float32 step, as training runs it, with one kind of kernel the reference's; by tensor, its error."""
    errors: dict[str, TensorStats] = {}

    def measure(name: str, value: np.ndarray) -> None:
        if name in truth:
            errors[name] = error_stats.difference(value, truth[name])

    with reference_kernels(kernels, [kind]):
        make_step(job, folder, "float32").run(measure)
    return errors
