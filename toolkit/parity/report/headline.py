"""The first lines of a report: the place at fault, and the fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from toolkit.parity.exchange.results import Place
from toolkit.parity.followup.functions import INPUT
from toolkit.parity.followup.trace import FaultyOp, OperationTrace, describe_operation, first_faulty_operation
from toolkit.parity.judge.culprit import is_of_part, is_of_recomputing, recomputing_at_fault
from toolkit.parity.judge.findings import OF_RECOMPUTING, Finding, Verdict
from toolkit.parity.judge.updates import describe_wrong_parameters, update_number
from toolkit.parity.measure.evaluation import NARROW, NO_HOOKS, NO_PADDING
from toolkit.parity.measure.naming import TensorName


class Headline(NamedTuple):
    """First lines of a report.

    Attributes:
        place: the module or code at fault with its source line, if one can be named.
        message: the fault.
    """

    place: str
    message: str


def choose_headline(
    culprit: Finding, verdict: Verdict, trace: OperationTrace | None, places: Mapping[str, Place], with_decay: list[str]
) -> Headline:
    """Return the headline of the culprit, or of the operation that is wrong in isolation, if the trace has found it.

    Args:
        culprit: the finding nearest to the cause.
        verdict: verdict of the gate.
        trace: operations that are wrong in isolation; None without a trace.
        places: source locations of the port's modules and other code.
        with_decay: names of the parameters with weight decay.
    """
    name = TensorName.parse(culprit.name)
    if culprit.verdict == "reference":
        return Headline(culprit.name, culprit.message)
    if culprit.verdict == "trajectory":
        own = name.without_run
        place = _describe_code("optimizer", places) if own.kind == "updated" else describe_place(str(own), places)
        return Headline(f"{name.evaluation} of training: {place}", f"{own}: {culprit.message}")
    at_fault = is_of_recomputing(culprit, recomputing_at_fault(verdict))
    if at_fault or culprit.verdict in OF_RECOMPUTING:
        # If the two backwards differ and the step's own gradients are right, plain autograd's are wrong.
        place = _describe_code("recomputed" if at_fault else "plain", places)
        return Headline(place, f"{culprit.name}: {culprit.message}")
    if operation := first_faulty_operation(trace, culprit):
        first_seen = f"; in the free run it first shows in {culprit.name}: {culprit.message}"
        isolation_text = "" if operation.function == INPUT else ", by itself"
        message = f"{operation.message}{isolation_text}{first_seen if culprit.name != operation.name else ''}"
        return Headline(describe_operation_place(operation, places), message)
    if name.kind == "trained":
        message = f"not what the examples have; {culprit.name}: {culprit.message}"
        return Headline(f"what the forwards of a batch are given: {_describe_code('trained', places)}", message)
    if name.kind == "accumulated":
        message = f"the gradients that the optimizer is given are wrong; {culprit.name}: {culprit.message}"
        return Headline(f"the gradients of a whole batch: {_describe_code('accumulated', places)}", message)
    if name.kind in ("updated", "moment"):
        code = _describe_code(name.kind, places)
        message = f"{describe_wrong_parameters(culprit, verdict, with_decay)}; {culprit.name}: {culprit.message}"
        return Headline(f"update {update_number(name)} of the parameters: {code}", message)
    if name.evaluation == NARROW:
        place = f"what the head does not read and the last layer leaves out: {_describe_code(NARROW, places)}"
    elif name.evaluation == NO_PADDING:
        place = f"the padding that is left out: {_describe_code(NO_PADDING, places)}"
    elif name.evaluation == NO_HOOKS:
        return Headline(describe_place(str(name.without_run), places), f"{culprit.name}: {culprit.message}")
    elif name.evaluation:
        place = describe_place(culprit.name if culprit.name in places else str(name.without_run), places)
    else:
        tensor_text = f"{culprit.name}: " if is_of_part(culprit) and name.kind in ("parameter", "gradient") else ""
        tensor_text = f"{culprit.name}: " if name.kind == "buffer" else tensor_text
        return Headline(describe_place(culprit.name, places), f"{tensor_text}{culprit.message}")
    return Headline(place, f"in evaluation mode ({culprit.name}): {culprit.message}")


def describe_place(name: str, places: Mapping[str, Place]) -> str:
    """Return a tensor's module with its class and source line, or the nearest enclosing module with a known place.

    For scores, losses and tokenizer outputs, return the code that computes them. Without a known place, return the
    name.
    """
    tensor_name = TensorName.parse(name)
    module = name if name in places else tensor_name.module
    while module and module not in places:
        module = module.rpartition(".")[0]
    if module:
        return f"{module} ({places[module].kind}, {places[module].where})"
    if (not tensor_name.module or tensor_name.kind == "losses") and tensor_name.kind in places:
        return f"{name} ({places[tensor_name.kind].kind}, {places[tensor_name.kind].where})"
    return name


def describe_operation_place(operation: FaultyOp, places: Mapping[str, Place]) -> str:
    """Return an operation with its source line; for a whole module, its place (:func:`describe_place`)."""
    if operation.function:
        return f"{operation.function} ({operation.where}), on the way to {describe_operation(operation.name)}"
    tensor_name = TensorName.parse(operation.name)
    if tensor_name.kind == "output" or not tensor_name.module:
        return describe_place(operation.name, places)
    description = describe_operation(operation.name)
    return f"{description} ({operation.where})" if operation.where else description


def _describe_code(key: str, places: Mapping[str, Place]) -> str:
    """Return a description of code outside modules, with its source line.

    Args:
        key: name of the code.
        places: source location by name.
    """
    return f"{places[key].kind} ({places[key].where})" if key in places else key
