"""Choice of the culprit: the finding that is nearest to the cause.

The specification has the order in its section "Finding the place".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from toolkit.parity.judge.findings import ALONE, OF_RECOMPUTING, Finding, Verdict
from toolkit.parity.measure.evaluation import NO_HOOKS
from toolkit.parity.measure.naming import TensorName

#: Dtypes, the most accurate first.
DTYPES = ("float64", "float32", "bfloat16")
#: Kinds of tensors, draws and choices that a wrong recomputing backward makes wrong although the forward is right.
AFFECTED_BY_RECOMPUTING = ("gradient", "dropout", "normal", "relu")
#: Kinds of tensors that a side holds or draws, and does not compute: all later tensors depend on them.
PARTS = ("parameter", "dropout", "normal", "uniform", "multinomial", "num_buckets")


def first_at_fault(verdict: Verdict, order: list[str]) -> Finding | None:
    """Return the finding nearest to the cause (the culprit), or None without findings.

    The order is:

    1. a wrong parameter or draw, or a parameter that only the port has: it comes before everything computed from it;
    2. the first output that drifts, in execution order, and within an LSH attention its bucket choice;
    3. the gradient of the parameter that is used last, since a backward runs in the opposite direction;
    4. the first parameter that is wrong after an update;
    5. the tokenizer and randomly initialized weights, which the step does not use;
    6. an output with the numbers of R64 at other positions.

    If only bfloat16 is wrong, an operation that is wrong there in isolation comes before everything that depends on it.
    If only the recomputing backward is wrong, it comes before everything that it makes wrong. If the gate is
    inconclusive, the reference's fault is returned.

    Args:
        verdict: verdict with the findings.
        order: names of the reference's tensors in execution order.
    """
    if verdict.inconclusive:
        return (verdict.reference_faults or verdict.findings)[0]
    orders: dict[str, list[str]] = {"": []}
    for name in map(TensorName.parse, order):
        orders.setdefault(name.evaluation, []).append(str(name.without_run))
    place_of_run = list(orders)
    places = {run: {name: index for index, name in enumerate(names)} for run, names in orders.items()}
    recomputing = recomputing_at_fault(verdict)
    operations = [finding for finding in verdict.findings if finding.verdict == "precision"]
    only_lowered = all(finding.dtype == "bfloat16" for finding in verdict.findings)

    def rank(finding: Finding) -> tuple:
        """Return the rank of a finding as a tuple that sorts the finding nearest to the cause first."""
        if finding.verdict == "precision":  # the cause of every error in bfloat16, if no other dtype is wrong
            return (0, DTYPES.index("bfloat16") - 0.5, operations.index(finding)) if only_lowered else (6,)
        name = TensorName.parse(finding.name)
        if name.evaluation == NO_HOOKS:  # the step without hooks: a tensor that is wrong only there is right with them
            return (3, 0, rank_in_run(replace(finding, name=str(name.without_run)), ""))
        if name.evaluation in place_of_run[1:]:  # runs after the step: wrong only in evaluation
            own = replace(finding, name=str(name.without_run))
            return (3, place_of_run.index(name.evaluation), rank_in_run(own, name.evaluation))
        return rank_in_run(finding, "")

    def rank_in_run(finding: Finding, run: str) -> tuple:
        """Return the rank of a finding within one run, the step (empty ``run``) or an evaluation."""
        if finding.name in verdict.same_numbers:  # right numbers at other positions: a later result is at fault
            return (7,)
        order, place = orders[run], places[run]
        late = DTYPES.index(finding.dtype) if finding.dtype in DTYPES else 0
        name = TensorName.parse(finding.name)
        last = len(order)
        if is_of_recomputing(finding, recomputing):
            return (2, 0, late, finding.verdict not in OF_RECOMPUTING, -place.get(finding.name, -1))
        if is_of_part(finding) or name.kind in PARTS:
            return (0, late, _first_use(name.module, order))
        if name.kind == "epsilon":  # after the module's output, whose error is more informative
            return (1, late, place.get(f"output:{name.module}", last) + 0.5)
        if name.kind in ("buckets", "relu", "choice"):
            return (1, late, _first_use(name.module, order))
        if name.is_of_training:  # a wrong rate makes every update wrong
            return (4, name.kind != "learning_rate", late, place.get(finding.name, last))
        if name.kind == "gradient":
            return (2, 1, finding.verdict in OF_RECOMPUTING, late, -place.get(finding.name, -1))
        if finding.verdict in ("semantics", "rounding", "structure"):
            return (1, late, place.get(finding.name, last))
        return (5, late, 1 + _first_use(name.module, order) if name.kind == "new" else 0)

    return min(verdict.findings, key=rank, default=None)


def is_of_part(finding: Finding) -> bool:
    """Return whether a finding is on a wrong parameter or draw, which changes everything computed from it."""
    name = TensorName.parse(finding.name)
    if name.kind == "gradient":
        return not name.gradient_of and finding.message == ALONE
    return finding.verdict == "structure" and name.kind in PARTS


def is_of_recomputing(finding: Finding, dtypes: Collection[str]) -> bool:
    """Return whether a finding follows from a wrong recomputing backward.

    Args:
        finding: finding of the verdict.
        dtypes: dtypes where only the recomputing backward is wrong (:func:`recomputing_at_fault`).
    """
    return finding.dtype in dtypes and TensorName.parse(finding.name).kind in AFFECTED_BY_RECOMPUTING


def recomputing_at_fault(verdict: Verdict) -> set[str]:
    """Return the dtypes whose recomputing backward is wrong while forward and plain autograd are right.

    Args:
        verdict: verdict with its findings.
    """
    return {dtype for dtype in {finding.dtype for finding in verdict.findings} if _is_at_fault(verdict, dtype)}


def _is_at_fault(verdict: Verdict, dtype: str) -> bool:
    """Return whether only the recomputing backward is wrong in a dtype.

    Args:
        verdict: verdict with its findings.
        dtype: dtype of the port's run.
    """
    findings = [
        finding
        for finding in verdict.findings
        if finding.dtype == dtype and finding.verdict not in ("precision", "loop")
    ]
    names = [TensorName.parse(finding.name) for finding in findings if finding.verdict not in OF_RECOMPUTING]
    if any(name.kind not in AFFECTED_BY_RECOMPUTING and not name.is_of_training for name in names):
        return False  # the forward is wrong
    plain = [one for one in verdict.plain if one.dtype == dtype]
    if plain:  # the step's own gradients come from the other backward
        return all(one.passed for one in plain) and (len(names) < len(findings) or _has_gradient(names))
    return len(names) < len(findings) and not _has_gradient(names)


def _has_gradient(tensor_names: Iterable[TensorName]) -> bool:
    """Return whether any of the names is the name of a gradient."""
    return any(name.kind == "gradient" for name in tensor_names)


def _first_use(module: str, order: list[str]) -> int:
    """Return the index of the first output of a module in the execution order; its length if there is none.

    So a fault of a parameter ranks before its consequences.

    Args:
        module: path of the module or of its parameter, such as ``encoder.norm.weight``.
        order: names of the run's tensors in execution order.
    """
    owner = module.rpartition(".")[0] if module.endswith((".weight", ".bias")) else module
    names = enumerate(map(TensorName.parse, order))
    return next((i for i, name in names if (name.kind, name.module) == ("output", owner)), len(order))
