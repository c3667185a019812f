"""The port's part of the command ``parity bitwise``: one float32 step with the reference's kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import reference_kernels
from toolkit.parity.candidate.step import make_step
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.job.job import Job

#: Settings of the port for a plain sum in the residual streams, as the reference computes it.
PLAIN = {"residual": "plain"}


def run(job: Job, folder: Path, sender: Sender, kernels: KernelClient) -> None:
    """Run the float32 step with the reference's kernels, and send its tensors, calls and source locations.

    Args:
        job: the job; ``job.kernels`` names the kinds of kernels to replace.
        folder: job folder, with the reference's files.
        sender: sending end of the pipe to the comparator.
        kernels: client of the reference's kernels.
    """
    files.wait_for_reference(folder, "order.json")
    step = make_step(replace(job, port={**job.port, **PLAIN}), folder, "float32", "autograd")
    with reference_kernels(kernels, job.kernels or []):
        step.run(lambda name, value: sender.send_array("tensor", name, value))
    sender.send_json("calls", dict(kernels.calls))
    sender.send_json("places", step.places())
