"""The first lines of a report: the place that is at fault, and what is wrong there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from toolkit.parity.followup.functions import INPUT
from toolkit.parity.followup.trace import FaultyOp, OperationTrace, describe, first_of
from toolkit.parity.job.results import Place
from toolkit.parity.judge.culprit import is_of_part, is_of_recomputing, recomputing_at_fault
from toolkit.parity.judge.findings import OF_RECOMPUTING, Finding, Verdict
from toolkit.parity.judge.updates import describe_wrong_parameters, update_number
from toolkit.parity.measure.evaluation import NARROW, NO_HOOKS, NO_PADDING
from toolkit.parity.measure.naming import TensorName


class Headline(NamedTuple):
    """First lines of a report.

    Attributes:
        place: the module or code at fault with its source line, if one can be named.
        message: what is wrong there.
    """

    place: str
    message: str


def headline(
    culprit: Finding, verdict: Verdict, trace: OperationTrace | None, places: Mapping[str, Place], decayed: list[str]
) -> Headline:
    """Return the headline of the finding nearest to the cause, or of the operation wrong by itself, if found.

    Args:
        places: of the port's modules and other code.
        decayed: the parameters that weight decay applies to.
    """
    name = TensorName.parse(culprit.name)
    if culprit.verdict == "reference":
        return Headline(culprit.name, culprit.message)
    if culprit.verdict == "trajectory":
        own = name.without_run
        place = _code("optimizer", places) if own.kind == "updated" else place_of(str(own), places)
        return Headline(f"{name.evaluation} of training: {place}", f"{own}: {culprit.message}")
    at_fault = is_of_recomputing(culprit, recomputing_at_fault(verdict))
    if at_fault or culprit.verdict in OF_RECOMPUTING:
        # If the two backwards differ and the step's own gradients are right, plain autograd's are wrong.
        place = _code("recomputed" if at_fault else "plain", places)
        return Headline(place, f"{culprit.name}: {culprit.message}")
    if operation := first_of(trace, culprit):
        shown = f"; in the free run it first shows in {culprit.name}: {culprit.message}"
        alone = "" if operation.function == INPUT else ", by itself"
        message = f"{operation.message}{alone}{shown if culprit.name != operation.name else ''}"
        return Headline(place_of_operation(operation, places), message)
    if name.kind == "trained":
        message = f"not what the examples have; {culprit.name}: {culprit.message}"
        return Headline(f"what the forwards of a batch are given: {_code('trained', places)}", message)
    if name.kind == "accumulated":
        message = f"the gradients that the optimizer is given are wrong; {culprit.name}: {culprit.message}"
        return Headline(f"the gradients of a whole batch: {_code('accumulated', places)}", message)
    if name.kind in ("updated", "moment"):
        code = _code(name.kind, places)
        message = f"{describe_wrong_parameters(culprit, verdict, decayed)}; {culprit.name}: {culprit.message}"
        return Headline(f"update {update_number(name)} of the parameters: {code}", message)
    if name.evaluation == NARROW:
        place = f"what the head does not read and the last layer leaves out: {_code(NARROW, places)}"
    elif name.evaluation == NO_PADDING:
        place = f"the padding that is left out: {_code(NO_PADDING, places)}"
    elif name.evaluation == NO_HOOKS:
        return Headline(place_of(str(name.without_run), places), f"{culprit.name}: {culprit.message}")
    elif name.evaluation:
        place = place_of(culprit.name if culprit.name in places else str(name.without_run), places)
    else:
        what = f"{culprit.name}: " if is_of_part(culprit) and name.kind in ("parameter", "gradient") else ""
        what = f"{culprit.name}: " if name.kind == "buffer" else what
        return Headline(place_of(culprit.name, places), f"{what}{culprit.message}")
    return Headline(place, f"in evaluation mode ({culprit.name}): {culprit.message}")


def place_of(name: str, places: Mapping[str, Place]) -> str:
    """Return a tensor's module, or the nearest enclosing one that has a place, with its class and source line; for
    scores, losses and tokenizer outputs, where they are computed; the tensor's name if no place is known."""
    parsed = TensorName.parse(name)
    module = name if name in places else parsed.module
    while module and module not in places:
        module = module.rpartition(".")[0]
    if module:
        return f"{module} ({places[module].kind}, {places[module].where})"
    if (not parsed.module or parsed.kind == "losses") and parsed.kind in places:
        return f"{name} ({places[parsed.kind].kind}, {places[parsed.kind].where})"
    return name


def place_of_operation(operation: FaultyOp, places: Mapping[str, Place]) -> str:
    """Return an operation with its line; for a whole module, as :func:`place_of`."""
    if operation.function:
        return f"{operation.function} ({operation.where}), on the way to {describe(operation.name)}"
    parsed = TensorName.parse(operation.name)
    if parsed.kind == "output" or not parsed.module:
        return place_of(operation.name, places)
    what = describe(operation.name)
    return f"{what} ({operation.where})" if operation.where else what


def _code(key: str, places: Mapping[str, Place]) -> str:
    """Code that is of no module, with its line."""
    return f"{places[key].kind} ({places[key].where})" if key in places else key
