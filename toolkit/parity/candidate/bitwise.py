"""The port's part in ``parity bitwise``: one float32 step with the reference's kernels, against R32 bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import reference_kernels
from toolkit.parity.candidate.step import make_step
from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import BitwiseResult
from toolkit.parity.measure import ulp
from toolkit.parity.measure.ulp import BitDifference

#: By which the port adds as the reference does.
PLAIN = {"residual": "plain"}


def run(job: Job, folder: Path, kernels: KernelClient) -> BitwiseResult:
    """Every tensor of R32 against the port's, with the job's kinds of kernels the reference's."""
    files.wait_for_reference(folder, "order.json")
    step = make_step(replace(job, port={**job.port, **PLAIN}), folder, "float32", "autograd")
    ours: dict[str, np.ndarray] = {}
    with reference_kernels(kernels, job.kernels or []):
        step.run(ours.__setitem__)
    theirs = files.read_tensors(folder / "reference" / "float32.safetensors")
    order = files.read_json(folder / "reference" / "order.json")
    return BitwiseResult(
        tensors={name: _compare(name, ours, theirs[name]) for name in order},
        extra=sorted(ours.keys() - theirs.keys()),
        calls=dict(kernels.calls),
        places=step.places(),
    )


def _compare(name: str, ours: Mapping[str, np.ndarray], theirs: np.ndarray) -> BitDifference:
    if name in ours:
        return ulp.compare(ours[name], theirs)
    return BitDifference(theirs.size, theirs.size, ulp.UNORDERED, "not computed by the port")
