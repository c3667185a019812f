"""``python -m toolkit.parity.candidate.attribution JOB PYTHON``: P32 again, with one kind of kernel the reference's.

For a job whose float32 drifts; each kind in turn. PYTHON is the interpreter that has torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from toolkit import runtime
from toolkit.parity.candidate.kernel_client import KernelServer
from toolkit.parity.candidate.measure import make_step
from toolkit.parity.job import files, worker
from toolkit.parity.job.kernel_messages import KINDS
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure import error_stats


def main(folder: Path) -> None:
    """Write ``candidate/attribution.json``: by kind, how far each tensor of P32 then lies from R64. A kind that the
    model does not use is left out."""
    job = files.read_json(folder / "job.json")
    with KernelServer(folder, sys.argv[2]) as server:
        runtime.configure(job["device"], job["threads"])
        truth = TensorFile(folder / "reference" / "float64.safetensors")
        measured = {}
        for kind in KINDS:
            before = server.calls.total()
            errors = measure_with(kind, job, folder, truth, server)
            if server.calls.total() > before:
                measured[kind] = errors
    files.write_json(folder / "candidate" / "attribution.json", measured)


def measure_with(
    kind: str, job: dict, folder: Path, truth: Mapping[str, np.ndarray], server: KernelServer
) -> dict[str, dict]:
    """The float32 step, as training runs it, with one kind of kernel the reference's; by tensor, its error."""
    from toolkit.parity.candidate.kernels import reference_kernels

    errors: dict[str, dict] = {}

    def measure(name: str, value: np.ndarray) -> None:
        if name in truth:
            errors[name] = error_stats.difference(value, truth[name])

    with reference_kernels(server, [kind]):
        make_step(job, folder, "float32").run(measure)
    return errors


if __name__ == "__main__":
    worker.run("candidate", main, sys.argv[1:2])
