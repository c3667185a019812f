"""P32 again, where float32 drifts: one compiled loop is composed, or one kind of kernel is the reference's."""

from __future__ import annotations

from pathlib import Path

from models.operations import compiled
from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import reference_kernels
from toolkit.parity.candidate.step import make_step
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.job import Job
from toolkit.parity.job.kernel_messages import KINDS


def run(job: Job, folder: Path, over: Sender, kernels: KernelClient) -> None:
    """Run the step with each thing replaced in turn; say which the model uses."""
    hand_with_loops_composed(job, folder, over)
    for kind in KINDS:
        over.begin(kind)
        before = kernels.calls.total()
        with reference_kernels(kernels, [kind]):
            hand(job, folder, over)
        if kernels.calls.total() > before:
            over.say("used", "kernel", kind)


def hand_with_loops_composed(job: Job, folder: Path, over: Sender) -> None:
    """Run the step with each compiled loop composed in turn."""
    for loop in compiled.LOOPS if compiled.is_chosen() else ():
        over.begin(loop)
        with compiled.composed([loop]) as asked:
            hand(job, folder, over)
        if asked[loop]:
            over.say("used", "loop", loop)


def hand(job: Job, folder: Path, over: Sender) -> None:
    """Hand over the float32 step, run as in training."""
    make_step(job, folder, "float32").run(lambda name, value: over.hand("tensor", name, value))
