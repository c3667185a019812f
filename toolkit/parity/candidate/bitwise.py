"""The port's part in ``parity bitwise``: one float32 step with the reference's kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import reference_kernels
from toolkit.parity.candidate.step import make_step
from toolkit.parity.job import files
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.job import Job

#: For adding as the reference does.
PLAIN = {"residual": "plain"}


def run(job: Job, folder: Path, sender: Sender, kernels: KernelClient) -> None:
    """Run the step with the reference's kernels for the job's kinds."""
    files.wait_for_reference(folder, "order.json")
    step = make_step(replace(job, port={**job.port, **PLAIN}), folder, "float32", "autograd")
    with reference_kernels(kernels, job.kernels or []):
        step.run(lambda name, value: sender.send_array("tensor", name, value))
    sender.send_json("calls", dict(kernels.calls))
    sender.send_json("places", step.places())
