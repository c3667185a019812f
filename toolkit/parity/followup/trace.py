"""Forced input: which operation of the port is wrong by itself, whatever came before it.

In a free run an error spreads to all that is computed from it. Here every operation and module of the port is given
R64's own input, in the forward and in the backward, and so an error is its own. It is judged as the gate judges a
tensor; the yardstick is what the reference's float32 is off by in that one operation, on the same input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.job import files
from toolkit.parity.job.processes import run_workers
from toolkit.parity.judge.bounds import Comparison, compare, is_measured
from toolkit.parity.judge.verdict import OF_TENSORS, Verdict

#: Guilty operations that the report shows.
SHOWN = 6


@dataclass(frozen=True)
class Guilty:
    """An operation that is wrong by itself.

    Attributes:
        name: of its tensor: ``scores:MODULE``, ``output:MODULE``, ``gradient:`` before either for the backward,
            ``gradient:PARAMETER``, or ``loss``.
        where: the line of the port.
        message: by how much it is wrong.
    """

    name: str
    where: str
    dtype: str
    message: str

    def text(self) -> str:
        return f"{describe(self.name)}{f' ({self.where})' if self.where else ''}: {self.message}"


def describe(name: str) -> str:
    """An operation in words: ``scores of MODULE``, ``the backward into the scores of MODULE``."""
    kind, _, rest = name.partition(":")
    if kind == "gradient" and ":" in rest:
        return f"the backward into {describe(rest)}"
    if kind == "gradient":
        return f"the gradient of {rest}"
    return f"{kind.replace('_', ' ')} of {rest}" if rest else kind


def follow(
    job: Path, verdict: Verdict, asked: bool, console: Console, interpreters: Mapping[str, str]
) -> dict[str, Any]:
    """Follow the port of a job that both workers have run, if its step went wrong somewhere or ``asked`` for.

    Returns:
        ``compared``: how many tensors; ``alone``: names of those that only one side has; ``not_finite``: by dtype, how
        many are so in the reference; ``guilty``: dictionaries of :class:`Guilty`, the first in the order of execution
        first; ``worst``: the largest error of those that are right, in units of its bound. Or ``problem``, why it could
        not be followed. Or nothing.
    """
    if not (asked or is_wanted(verdict)):
        return {}
    if files.read_json(job / "job.json")["spare_memory"]:
        return {"problem": "the text is too long for all of its tensors to be kept; take a shorter one (--length)"}
    try:
        [(reference, candidate)] = measure([job], console, interpreters)
    except Inconclusive as problem:
        return {"problem": str(problem)}
    return summary(reference, candidate["dtypes"])


def unfollowed(verdict: Verdict, asked: bool, is_recorded: bool) -> dict[str, Any]:
    """As :func:`follow`, where the reference cannot be asked again: it is recorded, or ran stage by stage."""
    if not (asked or is_wanted(verdict)):
        return {}
    if is_recorded:
        return {"problem": "the reference is a recorded one, which does not hold them"}
    return {"problem": "the model went through the gate stage by stage; take one that fits memory (--layers)"}


def is_wanted(verdict: Verdict) -> bool:
    """Whether a tensor of the step itself differs: a parameter, a draw or a text says by itself what is wrong. A wrong
    reference is no yardstick."""
    of_step = (f for f in verdict.findings if not f.name.startswith(("updated:", "loss#")))
    return not verdict.inconclusive and any(finding.verdict in OF_TENSORS for finding in of_step)


def measure(
    jobs: Sequence[Path], console: Console, interpreters: Mapping[str, str]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each job both sides' part (see :mod:`.reference.trace`, :mod:`.candidate.trace`).

    Raises:
        Inconclusive: one of them failed.
    """
    for job in jobs:
        (job / "forced_input").mkdir()
    run_workers(jobs, console, interpreters, task="forced_input")
    return [
        (files.read_json(job / "forced_input" / "reference.json"), files.read_json(job / "forced_input" / "candidate.json"))
        for job in jobs
    ]


def summary(reference: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`follow`, of what was measured."""
    order = in_order(list(reference))
    seen = {name for ours in dtypes.values() for name in ours["tensors"]}
    yardsticks = in_the_ports_steps({name: reference[name] for name in order}, seen)
    compared: list[Comparison] = []
    guilty: list[Guilty] = []
    lost: dict[str, int] = {}
    for dtype, ours in dtypes.items():
        names = [name for name in order if name in ours["tensors"]]
        measured = [name for name in names if is_measured(yardsticks[name], dtype)]
        lost[dtype] = len(names) - len(measured)
        for name in measured:
            error, theirs = ours["tensors"][name], yardsticks[name]
            if error["rms"] is None:
                guilty.append(Guilty(name, _where(name, ours), dtype, _without_size(error, theirs)))
                continue
            compared.append(compare(name, theirs, error, dtype))
            if not compared[-1].passed:
                message = f"off by {compared[-1].relative:.1e} of its size, {compared[-1].margin:.3g} times the bound"
                guilty.append(Guilty(name, _where(name, ours), dtype, message))
    passed = [one.margin for one in compared if one.passed and one.informative]
    own = {name: None for ours in dtypes.values() for name in ours["places"] if name not in reference}
    return {
        "compared": len(compared),
        "alone": [*(name for name in order if name not in seen), *own],
        "not_finite": {dtype: count for dtype, count in lost.items() if count},
        "guilty": [vars(one) for one in guilty],
        "worst": max(passed, default=0.0),
    }


def in_the_ports_steps(reference: Mapping[str, Any], seen: Collection[str]) -> dict[str, Any]:
    """The reference's records of what the port has ``seen``, where a step of the port's may be several of its.

    The port masks and takes the softmax at once. On the way back its step ends at the scores; the reference's ends at
    the masked scores, and the next, to the scores, is no more than a copy. So what the reference is off by in gradients
    that the port does not stop at counts for the next one of that shape in the same module.
    """
    records: dict[str, Any] = {}
    skipped: list[str] = []
    for name, record in reference.items():
        if name not in seen:
            skipped.append(name)
            continue
        steps = [record, *(reference[other] for other in skipped if _leads_to(other, name, reference))]
        records[name] = {**record, "noise": _added_up(steps, "noise"), "noise_max": _added_up(steps, "noise_max")}
        skipped = []
    return records


def _leads_to(gradient: str, later: str, reference: Mapping[str, Any]) -> bool:
    both = (gradient, later)
    modules = {name.rpartition(":")[2].split("@")[0] for name in both}
    shapes = {tuple(reference[name]["shape"]) for name in both}
    return all(name.startswith("gradient:") for name in both) and len(modules) == len(shapes) == 1


def _added_up(steps: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float]]:
    """By dtype, for each run of the reference, the sum over the steps; None where one of them is not finite."""
    return {
        dtype: [
            None if None in errors else sum(errors)
            for errors in zip(*(step[key][dtype] for step in steps), strict=True)
        ]
        for dtype in steps[0][key]
    }


def _without_size(error: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What is wrong with a tensor whose error cannot be measured."""
    if error.get("missing"):
        return "no gradient comes back"
    if error["shape"] != theirs["shape"]:
        return f"shape {error['shape']}, the reference's is {theirs['shape']}"
    return "holds NaN or Inf"


def in_order(names: Sequence[str]) -> list[str]:
    """The names in the order of execution: a parameter's gradient follows that of what its module gives."""
    parameters = [name for name in names if name.startswith("gradient:") and name.count(":") == 1]
    taken = set(parameters)
    order = [name for name in names if name not in taken]
    for name in parameters:
        owner = name.partition(":")[2].rpartition(".")[0]
        places = [index for index, other in enumerate(order) if other.split("#")[0] == f"gradient:output:{owner}"]
        order.insert(places[-1] + 1 if places else len(order), name)
    return order


def _where(name: str, ours: Mapping[str, Any]) -> str:
    """The line of an operation; of a module, where it is made and defined."""
    point = name.removeprefix("gradient:")
    if point in ours["places"]:
        return ours["places"][point]
    module = point.partition(":")[2].split("#")[0] or point.rpartition(".")[0]
    while module and module not in ours["modules"]:
        module = module.rpartition(".")[0]
    return ours["modules"][module]["where"] if module else ""


def lines(followed: Mapping[str, Any]) -> list[str]:
    """What the report says."""
    if not followed:
        return []
    if "problem" in followed:
        return [f"operation by operation it could not be followed: {followed['problem']}"]
    guilty = [Guilty(**one) for one in followed["guilty"]]
    of = f"of {followed['compared']} operations and gradients, each on the reference's own input,"
    rest = [f"{count} in {dtype}" for dtype, count in followed["not_finite"].items()]
    unsaid = [f"not finite in the reference, and not compared: {', '.join(rest)}"] if rest else []
    if not guilty:
        return [f"{of} all are right, the worst at {followed['worst']:.2g} of its bound", *unsaid]
    said = [f"{of} {len(guilty)} {'is' if len(guilty) == 1 else 'are'} wrong; in the order of execution:"]
    said += [f"  {one.dtype} {one.text()}" for one in guilty[:SHOWN]]
    more = [f"  and {len(guilty) - SHOWN} more, in parity.json"] if len(guilty) > SHOWN else []
    return [*said, *more, *unsaid]
