"""Attribution of a float32 error: P32, the port's float32 step, with one part replaced at a time.

A part is a compiled loop, which is replaced by Paddle's operations, or a kind of kernel, which is replaced by the
reference's kernels.
"""

from __future__ import annotations

from pathlib import Path

from models.operations import compiled
from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import reference_kernels
from toolkit.parity.candidate.step import make_step
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.kernel_messages import KINDS
from toolkit.parity.job.job import Job


def run(job: Job, folder: Path, sender: Sender, kernels: KernelClient) -> None:
    """Run the float32 step with each loop and each kind of kernel replaced in turn, and send its tensors.

    The name of each loop or kind that the model uses is sent after the tensors of its replacement.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
        sender: sending end of the pipe to the comparator.
        kernels: client of the reference's kernels.
    """
    send_steps_with_composed_loops(job, folder, sender)
    for kind in KINDS:
        sender.begin(kind)
        before = kernels.calls.total()
        with reference_kernels(kernels, [kind]):
            send_step(job, folder, sender)
        if kernels.calls.total() > before:
            sender.send_json("used", "kernel", kind)


def send_steps_with_composed_loops(job: Job, folder: Path, sender: Sender) -> None:
    """Send the tensors of the float32 step with each compiled loop in turn composed of Paddle's operations.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
    """
    for loop in compiled.LOOPS if compiled.is_chosen() else ():
        sender.begin(loop)
        with compiled.compose_loops([loop]) as loop_calls:
            send_step(job, folder, sender)
        if loop_calls[loop]:
            sender.send_json("used", "loop", loop)


def send_step(job: Job, folder: Path, sender: Sender) -> None:
    """Run the float32 step as in training, and send its tensors.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
    """
    make_step(job, folder, "float32").run(lambda name, value: sender.send_array("tensor", name, value))
