"""Outputs between a pair's modules that differ in kind from the reference's, while every later result agrees.

A router may return its two weights or its scores over all experts. An expert may get its tokens in another order, and
layers may see the texts with or without padding. Then the results that depend on such an output decide. It is set aside
(its findings no longer stop the port) if

- nothing else differs: the loss, the scores, every gradient, every update and every other output agree in all dtypes;
- the loss depends on the output, by R64's gradient: if the shapes are the same, at each position where the numbers
  differ; otherwise in each row, or one side's numbers are all among the other's. Rows in another order may also be
  unread if the loss depends on another tensor of the same output. An output without a gradient is not set aside, such
  as an output that the model itself returns, an output above frozen layers only, or any output of a forward without a
  loss;
- in evaluation, which has no gradient, the same output of the step is set aside. It is also set aside if it agrees in
  the step, the loss depends on all of its elements, and the same rows are in another order in evaluation: an expert may
  get one token in the step and several in evaluation.

A relative difference below 1% is never set aside: it is an error of the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from toolkit.parity.exchange.results import (
    CandidateDtype,
    CandidateResult,
    OutputDifference,
    ReferenceFacts,
    ReferenceResult,
)
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.measure.same_numbers import ROWS

#: Dtypes whose differences are examined, the most accurate first.
ACCURATE = ("float64", "float32")
#: Verdicts on an output that differs in kind from the reference's.
OF_OUTPUTS = ("structure", "semantics", "rounding")


def differing_outputs(candidate: CandidateResult) -> Mapping[str, OutputDifference]:
    """Return the differences of the port's outputs from R64's by name, in the most accurate compared dtype.

    Args:
        candidate: results of the port.
    """
    dtype_results = [candidate.dtypes[dtype] for dtype in ACCURATE if dtype in candidate.dtypes]
    return next(iter(dtype_results), CandidateDtype()).differing_outputs


def is_decided_behind(name: str, difference: OutputDifference, facts: ReferenceFacts) -> bool:
    """Return whether the tensors computed from an output of the step would show that the output is wrong.

    Args:
        name: name of the output.
        difference: difference of the port's output from R64's.
        facts: properties of the reference, with the share of each output that the loss depends on.
    """
    share = facts.read.get(name)
    if share is None:
        return False
    if difference.shared == ROWS and name in facts.read_beside:  # such as the last states of packed texts
        return True
    if difference.unread is None:
        return share == 1.0 or (bool(difference.shared) and share > 0.0)
    return difference.unread == 0


def replaceable_outputs(verdict: Verdict, reference: ReferenceResult, candidate: CandidateResult) -> set[str]:
    """Return the names of a pair's outputs whose findings are set aside if nothing else differs.

    If the first call of a module is one of them, so are further calls that only one side makes.

    Args:
        verdict: verdict with all findings.
        reference: measurements of the reference.
        candidate: measurements of the port.
    """
    differing = differing_outputs(candidate)
    read = reference.facts.read
    decided_names = {name for name, one in differing.items() if is_decided_behind(name, one, reference.facts)}
    names = [TensorName.parse(name) for name in {*differing, *(finding.name for finding in verdict.findings)}]
    replaceable_names = set()
    for name in (one for one in names if one.without_run.kind == "output"):
        own = name.without_run
        is_further_call = bool(own.call) and str(name) not in differing and read.get(str(own), 1.0) == 1.0
        agrees_in_step = bool(name.evaluation) and str(own) not in differing and read.get(str(own)) == 1.0
        is_only_reordered = str(name) in differing and differing[str(name)].shared == ROWS
        if str(own._replace(call="") if is_further_call else own) in decided_names or (
            agrees_in_step and is_only_reordered
        ):
            replaceable_names.add(str(name))
    return replaceable_names


def padded_outputs(reference: ReferenceResult, candidate: CandidateResult) -> set[str]:
    """Return the names of the port's outputs that hold R64's rows and also rows of padding.

    This is so if the reference's layers see no padding. The result has several outputs, among them the first of all
    outputs; otherwise it is empty. A single layer that returns more rows, as a convolution that pads, may be the fault.

    Args:
        reference: results of the reference.
        candidate: results of the port.
    """
    ours = next((candidate.dtypes[dtype].tensors for dtype in ACCURATE if dtype in candidate.dtypes), {})
    tensor_names = {name: TensorName.parse(name) for name in reference.tensors}
    outputs = [name for name, one in tensor_names.items() if one.kind == "output"]
    differing = differing_outputs(candidate)
    padded_names = [
        name
        for name in outputs
        if name in differing
        and differing[name].shared == ROWS
        and math.prod(ours[name].shape) > math.prod(reference.tensors[name].shape)
    ]
    return set(padded_names) if len(padded_names) > 1 and outputs[0] in padded_names else set()


def _is_of_interface(finding: Finding, verdict: Verdict, candidate: CandidateResult) -> bool:
    """Return whether a finding is on a replaceable output, which is finite, so that it may be set aside.

    Args:
        finding: finding to classify.
        verdict: verdict with the measured differences.
        candidate: results of the port.
    """
    stats = candidate.dtypes[finding.dtype].tensors.get(finding.name) if finding.dtype in candidate.dtypes else None
    is_finite = stats is None or stats.finite
    return finding.name in verdict.replaceable and finding.verdict in OF_OUTPUTS and is_finite


def set_aside(verdict: Verdict, reference: ReferenceResult, candidate: CandidateResult) -> None:
    """Move all findings out of a verdict if each is on a replaceable output, and note these outputs.

    Args:
        verdict: verdict to change; its sets of output names are filled in any case.
        reference: measurements of the reference.
        candidate: measurements of the port.
    """
    differing = differing_outputs(candidate)
    verdict.same_numbers = {name for name, one in differing.items() if one.shared}
    verdict.padded_outputs = padded_outputs(reference, candidate)
    verdict.replaceable = replaceable_outputs(verdict, reference, candidate)
    if not verdict.findings or not all(_is_of_interface(finding, verdict, candidate) for finding in verdict.findings):
        return
    verdict.set_aside, verdict.findings = verdict.findings, []
    names = {finding.name for finding in verdict.set_aside}
    verdict.comparisons = [one for one in verdict.comparisons if one.name not in names]
    modules = dict.fromkeys(TensorName.parse(finding.name).module for finding in verdict.set_aside)
    verdict.note("outputs-set-aside", count=len(modules), names=", ".join(modules))
