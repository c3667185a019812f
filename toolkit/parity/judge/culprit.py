"""Which of the findings is nearest to the cause (the specification's "Finding the place")."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from toolkit.parity.judge.verdict import ALONE, OF_RECOMPUTING, Finding, Verdict
from toolkit.parity.measure.evaluation import UNWATCHED
from toolkit.parity.measure.naming import TensorName

#: Dtypes, the most accurate first.
SIGHT = ("float64", "float32", "bfloat16")
#: Kinds of tensors, draws and choices that a wrong recomputing backward spoils although the forward is right.
SPOILT = ("gradient", "dropout", "normal", "relu")
#: Kinds of tensors that a side holds or draws.
PARTS = ("parameter", "dropout", "normal", "uniform", "multinomial", "num_buckets")


def first_at_fault(verdict: Verdict, order: list[str]) -> Finding | None:
    """Return the finding nearest to the cause.

    A wrong parameter or draw, or a parameter that only the port has, comes before everything computed from it. Then
    comes the first output that drifts, in execution order, and within an LSH attention its bucket choice; then the
    gradient of the parameter used last, since a backward runs the other way; then the first parameter that an update
    leaves wrong; then the tokenizer and new weights, which the step does not use. If only bfloat16 is wrong, an
    operation that is wrong there by itself comes before everything that depends on it. A recomputing backward that is
    wrong by itself comes before all that it spoils. An output of R64's numbers at other places comes last. If no
    finding tells anything about the port, the reference's fault is returned.

    Args:
        order: the reference's tensors in execution order.
    """
    if verdict.inconclusive:
        return (verdict.reference_faults or verdict.findings)[0]
    orders: dict[str, list[str]] = {"": []}
    for name in map(TensorName.parse, order):
        orders.setdefault(name.evaluation, []).append(str(name.in_its_run))
    place_of_run = list(orders)
    places = {run: {name: index for index, name in enumerate(names)} for run, names in orders.items()}
    recomputing = recomputing_at_fault(verdict)
    operations = [finding for finding in verdict.findings if finding.verdict == "precision"]
    only_lowered = all(finding.dtype == "bfloat16" for finding in verdict.findings)

    def rank(finding: Finding) -> tuple:
        if (
            finding.verdict == "precision"
        ):  # the cause of what else is wrong in bfloat16, if nothing is in another dtype
            return (0, SIGHT.index("bfloat16") - 0.5, operations.index(finding)) if only_lowered else (6,)
        name = TensorName.parse(finding.name)
        if name.evaluation == UNWATCHED:  # the step again: what is wrong there alone is right where it is watched
            return (3, 0, rank_in_run(replace(finding, name=str(name.in_its_run)), ""))
        if name.evaluation in place_of_run[1:]:  # after the step: what is wrong there is not right in evaluation
            own = replace(finding, name=str(name.in_its_run))
            return (3, place_of_run.index(name.evaluation), rank_in_run(own, name.evaluation))
        return rank_in_run(finding, "")

    def rank_in_run(finding: Finding, run: str) -> tuple:
        if finding.name in verdict.same_numbers:  # right numbers at other places: the fault is behind them
            return (7,)
        order, place = orders[run], places[run]
        late = SIGHT.index(finding.dtype) if finding.dtype in SIGHT else 0
        name = TensorName.parse(finding.name)
        last = len(order)
        if is_of_recomputing(finding, recomputing):
            return (2, 0, late, finding.verdict not in OF_RECOMPUTING, -place.get(finding.name, -1))
        if is_of_a_part(finding) or name.kind in PARTS:
            return (0, late, _first_use(name.module, order))
        if name.kind == "epsilon":  # after the output of the module, whose figure says more
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


def is_of_a_part(finding: Finding) -> bool:
    """Whether a parameter or a draw differs, and with it whatever is computed from it."""
    name = TensorName.parse(finding.name)
    if name.kind == "gradient":
        return not name.into and finding.message == ALONE
    return finding.verdict == "structure" and name.kind in PARTS


def is_of_recomputing(finding: Finding, dtypes: Collection[str]) -> bool:
    """Whether a finding is the fault of the backward that computes layers again, which is at fault in ``dtypes``
    (:func:`recomputing_at_fault`)."""
    return finding.dtype in dtypes and TensorName.parse(finding.name).kind in SPOILT


def recomputing_at_fault(verdict: Verdict) -> set[str]:
    """The dtypes where only the recomputing backward is wrong: forward and plain autograd are right."""
    return {dtype for dtype in {found.dtype for found in verdict.findings} if _is_at_fault(verdict, dtype)}


def _is_at_fault(verdict: Verdict, dtype: str) -> bool:
    findings = [
        found for found in verdict.findings if found.dtype == dtype and found.verdict not in ("precision", "loop")
    ]
    names = [TensorName.parse(found.name) for found in findings if found.verdict not in OF_RECOMPUTING]
    if any(name.kind not in SPOILT and not name.is_of_training for name in names):
        return False  # of the forward
    plain = [one for one in verdict.plain if one.dtype == dtype]
    if plain:  # the step's own gradients are of the other backward
        return all(one.passed for one in plain) and (len(names) < len(findings) or _has_gradient(names))
    return len(names) < len(findings) and not _has_gradient(names)


def _has_gradient(names: Iterable[TensorName]) -> bool:
    return any(name.kind == "gradient" for name in names)


def _first_use(module: str, order: list[str]) -> int:
    """Return the index of the first output of ``module``, so that its fault ranks before what it spoils."""
    owner = module.rpartition(".")[0] if module.endswith((".weight", ".bias")) else module
    names = enumerate(map(TensorName.parse, order))
    return next((i for i, name in names if (name.kind, name.module) == ("output", owner)), len(order))
