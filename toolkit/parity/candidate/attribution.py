"""P32 again, where float32 drifts: with one compiled loop composed, or one kind of kernel the reference's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from models import compiled
from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import reference_kernels
from toolkit.parity.candidate.step import make_step
from toolkit.parity.job.job import Job
from toolkit.parity.job.kernel_messages import KINDS
from toolkit.parity.job.results import AttributionResult
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorStats


def run(job: Job, folder: Path, kernels: KernelClient) -> AttributionResult:
    """How far P32 then lies from R64. What the model does not use is left out."""
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    found = AttributionResult(loops=with_loops_composed(job, folder, truth))
    for kind in KINDS:
        before = kernels.calls.total()
        with reference_kernels(kernels, [kind]):
            errors = measure(job, folder, truth)
        if kernels.calls.total() > before:
            found.kernels[kind] = errors
    return found


def with_loops_composed(job: Job, folder: Path, truth: Mapping[str, np.ndarray]) -> dict[str, dict[str, TensorStats]]:
    """By compiled loop that the model uses, P32's errors with it composed."""
    found = {}
    for loop in compiled.LOOPS if compiled.is_chosen() else ():
        with compiled.composed([loop]) as asked:
            errors = measure(job, folder, truth)
        if asked[loop]:
            found[loop] = errors
    return found


def measure(job: Job, folder: Path, truth: Mapping[str, np.ndarray]) -> dict[str, TensorStats]:
    """The float32 step, as training runs it; by tensor, its error."""
    errors: dict[str, TensorStats] = {}

    def measured(name: str, value: np.ndarray) -> None:
        if name in truth:
            errors[name] = error_stats.difference(value, truth[name])

    make_step(job, folder, "float32").run(measured)
    return errors
