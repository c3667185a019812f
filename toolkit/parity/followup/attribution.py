"""If float64 passes and float32 does not, the port is right and a kernel is inaccurate: which one?

The float32 step is run again, with one of the port's compiled loops at a time composed of Paddle's operations
(:data:`models.operations.compiled.LOOPS`), then with one kind of kernel at a time taken from the reference
(:mod:`toolkit.parity.job.kernel_messages`). What brings the tensors back within their bounds is at fault. If that is a
compiled loop, the reference's kernels restore the bounds by replacing it, and tell nothing more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.job import files
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.results import AttributionResult, CandidateResult, ReferenceResult
from toolkit.parity.judge.bounds import compare, is_measured
from toolkit.parity.judge.verdict import Verdict
from toolkit.parity.measure.error_stats import TensorStats


@dataclass(frozen=True)
class Substitution:
    """Effect of the reference's kernels of one kind, or of composing one compiled loop.

    Attributes:
        kind: one of ``KINDS`` of :mod:`toolkit.parity.job.kernel_messages`; or of
        :data:`models.operations.compiled.LOOPS`.
        before, after: the largest error of any tensor in units of its bound, with the port's kernels and with these.
        tensor: the tensor with the error ``after``.
        is_loop: whether it is a compiled loop.
    """

    kind: str
    before: float
    after: float
    tensor: str
    is_loop: bool = False

    @property
    def restores(self) -> bool:
        """Whether every tensor is within its bound."""
        return self.after <= 1.0

    def text(self) -> str:
        what = f"{self.kind} composed, not compiled" if self.is_loop else f"the reference's {self.kind}"
        return f"with {what}: {self.before:.3g} -> {self.after:.3g} of the bound"


def wanted(verdict: Verdict, dtypes: Sequence[str]) -> bool:
    """Whether float32 drifts, and nothing else is wrong."""
    only_float32 = {finding.dtype for finding in verdict.findings if finding.verdict != "loop"} == {"float32"}
    return {"float64", "float32"} <= set(dtypes) and only_float32 and not verdict.inconclusive


def attribute(
    job: Path, verdict: Verdict, reference: ReferenceResult, candidate: CandidateResult, console: Console
) -> list[Substitution]:
    """Return the effect of each compiled loop and each kind of kernel, the largest first.

    Empty if there is nothing to attribute, on a GPU, whose kernels are not served, and if the step cannot be run again,
    which the console reports.

    Args:
        job: the folder of a gate that has run.
    """
    if files.read_job(job).device != "cpu" or not wanted(verdict, list(candidate.dtypes)):
        return []
    console.print("parity gate: float32 drifts; running the port with other kernels, kind by kind")
    try:
        run_workers([job], console, {"candidate": sys.executable}, task="attribution")
    except Inconclusive as problem:
        console.print(f"parity gate: which kernel it is could not be found out: {problem}", markup=False)
        return []
    measured = files.read(files.result_path(job, "candidate", "attribution"), AttributionResult)
    return substitutions(reference, candidate.dtypes["float32"].tensors, measured)


def substitutions(
    reference: ReferenceResult, errors: Mapping[str, TensorStats], measured: AttributionResult
) -> list[Substitution]:
    """As :func:`attribute`, from measurements. ``errors`` are P32's, as training runs it."""
    before, _ = worst(reference, errors)
    loops = [Substitution(loop, before, *worst(reference, found), True) for loop, found in measured.loops.items()]
    kernels = [Substitution(kind, before, *worst(reference, found)) for kind, found in measured.kernels.items()]
    return sorted([*loops, *kernels], key=lambda one: one.after)


def worst(reference: ReferenceResult, errors: Mapping[str, TensorStats]) -> tuple[float, str]:
    """Return the largest float32 error in units of its bound, and its tensor, among informative tensors."""
    compared = [
        compare(name, theirs, errors[name], "float32")
        for name, theirs in reference.tensors.items()
        if name in errors and errors[name].rms is not None and is_measured(theirs, "float32")
    ]
    largest = max((one for one in compared if one.informative), key=lambda one: one.margin)
    return largest.margin, largest.name


def lines(found: Sequence[Substitution]) -> list[str]:
    """Lines of the report: first the parts that restore the bounds, then the rest in one line."""
    if not found:
        return []
    restoring = at_fault(found)
    said = [one.text() for one in restoring]
    if not restoring:
        said.append(f"float64 passes, so a kernel is inaccurate; no kind alone brings {found[0].before:.3g} below 1")
    for what, is_loop in (("other loops composed", True), ("the reference's other kernels", False)):
        others = [one for one in found if one.is_loop == is_loop and not one.restores]
        if others:
            rest = ", ".join(f"{one.kind} {one.after:.3g}" for one in others)
            said.append(f"with {what}, worst tensor in units of its bound: {rest}")
    return said


def at_fault(found: Sequence[Substitution]) -> list[Substitution]:
    """Return what restores the bounds: compiled loops; if none, kinds of kernels."""
    restoring = [one for one in found if one.restores]
    return [one for one in restoring if one.is_loop] or restoring


def cause(found: Sequence[Substitution]) -> str:
    """Describe the inaccurate operation; "" unless there is exactly one."""
    restoring = at_fault(found)
    if len(restoring) != 1:
        return ""
    [one] = restoring
    return f"the {'compiled loop' if one.is_loop else 'kernel'} that loses digits: {one.kind}"
