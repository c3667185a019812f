"""Outputs between a pair's modules that are another thing than the reference's, while all that is behind them agrees.

A router may return its two weights or its scores over all experts. An expert may get its tokens in another order, and
layers may see the texts with or without padding. Then what lies behind such an output decides. It is set aside if

- nothing else differs: the loss, the scores, every gradient, every update and every other output agree in all dtypes;
- the loss depends on the output, by R64's gradient: if the shapes are the same, at each place where the numbers differ;
  else in each row, or one side's numbers are all among the other's. What no gradient comes back from is decided by
  nothing behind it: an output that the caller gets, one below which all is frozen, a forward without a loss;
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


def replaceable_outputs(verdict: Verdict, reference: ReferenceResult, candidate: CandidateResult) -> set[str]:
    """Return the names of outputs that are set aside if nothing else differs.

    If the first call of a module is one of them, so are further calls that only one side makes.
    """
    differing = differing_outputs(candidate)
    read = reference.facts.read
    decided = {
        name
        for name, one in differing.items()
        if (read.get(name) == 1.0 or (one.shared and read.get(name)) if one.unread is None else one.unread == 0)
    }
    names = [TensorName.parse(name) for name in {*differing, *(finding.name for finding in verdict.findings)}]
    found = set()
    for name in (one for one in names if one.in_its_run.kind == "output"):
        own = name.in_its_run
        is_further_call = bool(own.call) and str(name) not in differing and read.get(str(own), 1.0) == 1.0
        if str(own._replace(call="") if is_further_call else own) in decided:
            found.add(str(name))
    return found


def set_aside(verdict: Verdict, reference: ReferenceResult, candidate: CandidateResult) -> None:
    """Move the findings on replaceable outputs out of a verdict that has no other, and note them."""
    differing = differing_outputs(candidate)
    verdict.same_numbers = {name for name, one in differing.items() if one.shared}
    verdict.replaceable = replaceable_outputs(verdict, reference, candidate)
    if not verdict.findings or any(finding.name not in verdict.replaceable for finding in verdict.findings):
        return
    verdict.set_aside, verdict.findings = verdict.findings, []
    names = {finding.name for finding in verdict.set_aside}
    verdict.comparisons = [one for one in verdict.comparisons if one.name not in names]
    modules = dict.fromkeys(TensorName.parse(finding.name).module for finding in verdict.set_aside)
    verdict.note("outputs-set-aside", count=len(modules), names=", ".join(modules))
