"""Outputs between a pair's modules that are another thing than the reference's, while all that is behind them agrees.

A router may return its two weights or its scores over all experts; an expert may get its tokens in another order; layers
may see the texts with or without padding. Then what lies behind such an output decides. The output is set aside if

- nothing else differs: the loss, the scores, every gradient, every update and every other output agree in all dtypes;
- the loss depends on the output, by R64's gradient. If the shapes are the same, this holds at each place where the
  numbers differ. What no gradient comes back from is decided by nothing behind it: an output that only the caller gets,
  a layer below which all is frozen, a forward without a loss;
- in evaluation, where there is no gradient, the same output of the step is set aside.

A difference in the last digits is never set aside: an output of other numbers is another thing, one of less accurate
numbers is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolkit.parity.job.results import CandidateDtype, CandidateResult, OutputDifference, ReferenceResult
from toolkit.parity.measure.naming import TensorName

if TYPE_CHECKING:
    from toolkit.parity.judge.verdict import Verdict

#: Dtypes in which a difference is looked at, the most accurate first.
ACCURATE = ("float64", "float32")


def differing_outputs(candidate: CandidateResult) -> Mapping[str, OutputDifference]:
    """Return how the port's outputs differ from R64's, in the most accurate dtype that was compared."""
    measured = [candidate.dtypes[dtype] for dtype in ACCURATE if dtype in candidate.dtypes]
    return next(iter(measured), CandidateDtype()).differing_outputs


def replaceable_outputs(reference: ReferenceResult, candidate: CandidateResult) -> set[str]:
    """Return the names of outputs that are set aside if nothing else differs."""
    differing = differing_outputs(candidate)
    read = reference.facts.read
    of_step = {name for name, one in differing.items() if read.get(name, 0.0) > 0.0 and not one.unread}
    in_evaluation = {
        name
        for name in differing
        if TensorName.parse(name).evaluation and str(TensorName.parse(name).in_its_run) in of_step
    }
    return of_step | in_evaluation


def set_aside(verdict: Verdict, reference: ReferenceResult, candidate: CandidateResult) -> None:
    """Move the findings on replaceable outputs out of a verdict that has no other, and note them."""
    differing = differing_outputs(candidate)
    verdict.same_numbers = {name for name, one in differing.items() if one.shared}
    verdict.replaceable = replaceable_outputs(reference, candidate)
    if not verdict.findings or any(finding.name not in verdict.replaceable for finding in verdict.findings):
        return
    verdict.set_aside, verdict.findings = verdict.findings, []
    names = {finding.name for finding in verdict.set_aside}
    verdict.comparisons = [one for one in verdict.comparisons if one.name not in names]
    modules = dict.fromkeys(TensorName.parse(finding.name).module for finding in verdict.set_aside)
    verdict.note("outputs-set-aside", count=len(modules), names=", ".join(modules))
