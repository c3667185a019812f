"""Search for the inaccurate kernel of a port that passes in float64 and drifts in float32.

The float32 step is run again, each time with another of the port's compiled loops composed of Paddle's operations
(:data:`models.operations.compiled.LOOPS`), then with one kind of kernel at a time taken from the reference
(:mod:`toolkit.parity.exchange.kernel_messages`). The replacement that brings the tensors back within their bounds
shows the fault. If it is a compiled loop, the reference's kernels restore the bounds only because they replace the
loop.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import AttributionResult, CandidateResult, ReferenceResult
from toolkit.parity.judge.bounds import compare, is_measured
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.processes.processes import run_workers


@dataclass(frozen=True)
class Substitution:
    """The effect of one replacement in the port on the errors of its float32 step.

    The replacement uses the reference's kernels of one kind, or composes one compiled loop of Paddle's operations.

    Attributes:
        kind: one of ``KINDS`` of :mod:`toolkit.parity.exchange.kernel_messages`, or of
            :data:`models.operations.compiled.LOOPS`.
        before: largest error of any tensor in units of its bound, with the port's own kernels.
        after: largest error of any tensor in units of its bound, with the replacement.
        tensor: name of the tensor with the error ``after``.
        is_loop: whether a compiled loop is replaced.
    """

    kind: str
    before: float
    after: float
    tensor: str
    is_loop: bool = False

    @property
    def restores(self) -> bool:
        """Whether every tensor is within its bound with the replacement."""
        return self.after <= 1.0

    def text(self) -> str:
        """Return a line for the report, such as ``with the reference's softmax: 5.1 -> 0.4 of the bound``."""
        what = f"{self.kind} composed, not compiled" if self.is_loop else f"the reference's {self.kind}"
        return f"with {what}: {self.before:.3g} -> {self.after:.3g} of the bound"


def is_attributable(verdict: Verdict, dtypes: Sequence[str]) -> bool:
    """Return whether a gate's float32 drifts and nothing else is wrong, so that a kernel is inaccurate.

    Args:
        verdict: the gate's verdict.
        dtypes: dtypes of the gate.
    """
    only_float32 = {finding.dtype for finding in verdict.findings if finding.verdict != "loop"} == {"float32"}
    return {"float64", "float32"} <= set(dtypes) and only_float32 and not verdict.inconclusive


def attribute_drift(
    job: Path, verdict: Verdict, reference: ReferenceResult, candidate: CandidateResult, console: Console
) -> list[Substitution]:
    """Return the effect of replacing each compiled loop and each kind of kernel, the largest effect first.

    A compiled loop is replaced by the operations of Paddle that it stands for, and a kernel by the reference's. The
    list is empty in three cases: float64 drifts, too; the port runs on a GPU, whose kernels cannot be replaced; or the
    step cannot be run again, which the console reports.

    Args:
        job: folder of a gate that has run.
        verdict: the gate's verdict.
        reference: the reference's measurements.
        candidate: the port's measurements.
        console: console for progress and problems.
    """
    if files.read_job(job).device != "cpu" or not is_attributable(verdict, list(candidate.dtypes)):
        return []
    console.print("parity gate: float32 drifts; running the port with other kernels, kind by kind")
    try:
        run_workers([job], console, {"candidate": sys.executable}, task="attribution")
    except Inconclusive as error:
        console.print(f"parity gate: which kernel it is could not be found out: {error}", markup=False)
        return []
    measurements = files.read(files.result_path(job, "candidate", "attribution"), AttributionResult)
    return compare_substitutions(reference, candidate.dtypes["float32"].tensors, measurements)


def compare_substitutions(
    reference: ReferenceResult, errors: Mapping[str, TensorStats], measurements: AttributionResult
) -> list[Substitution]:
    """Return the effect of each replacement in the port, the largest effect first.

    Args:
        reference: the reference's measurements.
        errors: errors of the port's float32 step as training runs it, by tensor.
        measurements: errors of the step with each replacement.
    """
    before, _ = find_largest_error(reference, errors)
    loops = [
        Substitution(loop, before, *find_largest_error(reference, errors_of_part), True)
        for loop, errors_of_part in measurements.loops.items()
    ]
    kernels = [
        Substitution(kind, before, *find_largest_error(reference, errors_of_part))
        for kind, errors_of_part in measurements.kernels.items()
    ]
    return sorted([*loops, *kernels], key=lambda one: one.after)


def find_largest_error(reference: ReferenceResult, errors: Mapping[str, TensorStats]) -> tuple[float, str]:
    """Return the largest float32 error of an informative tensor in units of its bound, and the tensor's name.

    A tensor is informative if the reference's own float32 error is small enough to judge it.

    Args:
        reference: the reference's measurements.
        errors: errors of the port, by tensor.
    """
    comparisons = [
        compare(name, theirs, errors[name], "float32")
        for name, theirs in reference.tensors.items()
        if name in errors and errors[name].rms is not None and is_measured(theirs, "float32")
    ]
    largest = max((one for one in comparisons if one.informative), key=lambda one: one.margin)
    return largest.margin, largest.name


def describe_substitutions(substitutions: Sequence[Substitution]) -> list[str]:
    """Return the report's lines: the replacements that restore the bounds, then the others in one line.

    Args:
        substitutions: effects of the replacements, the largest effect first.
    """
    if not substitutions:
        return []
    restoring = restoring_substitutions(substitutions)
    report_lines = [one.text() for one in restoring]
    if not restoring:
        margin = f"{substitutions[0].before:.3g}"
        report_lines.append(f"float64 passes, so a kernel is inaccurate; no kind alone brings {margin} below 1")
    for replaced_parts, is_loop in (("other loops composed", True), ("the reference's other kernels", False)):
        others = [one for one in substitutions if one.is_loop == is_loop and not one.restores]
        if others:
            rest = ", ".join(f"{one.kind} {one.after:.3g}" for one in others)
            report_lines.append(f"with {replaced_parts}, worst tensor in units of its bound: {rest}")
    return report_lines


def restoring_substitutions(substitutions: Sequence[Substitution]) -> list[Substitution]:
    """Return the replacements that restore the bounds: compiled loops, or kinds of kernels if no loop does.

    Args:
        substitutions: effects of all replacements.
    """
    restoring = [substitution for substitution in substitutions if substitution.restores]
    return [substitution for substitution in restoring if substitution.is_loop] or restoring


def describe_inaccurate_operation(substitutions: Sequence[Substitution]) -> str:
    """Return a description of the inaccurate loop or kind of kernels; empty unless there is exactly one.

    Args:
        substitutions: effects of the replacements.
    """
    restoring = restoring_substitutions(substitutions)
    if len(restoring) != 1:
        return ""
    [substitution] = restoring
    return f"the {'compiled loop' if substitution.is_loop else 'kernel'} that loses digits: {substitution.kind}"
