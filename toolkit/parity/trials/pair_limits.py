"""How small a fault the gate sees in a port of the user's: :mod:`.limits` of any pair."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.job import files
from toolkit.parity.job.build import scratch_job, workers_of
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import read_results
from toolkit.parity.job.synthetic import randomize_constants
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.verdict import judge
from toolkit.parity.mutants.change import weight_changed
from toolkit.parity.pairs.describe import described, write_pair
from toolkit.parity.pairs.match import leaf
from toolkit.parity.trials.limits import Limit, limits_of


def find_pair_limits(request: GateRequest, console: Console) -> list[Limit]:
    """Find the limit of every parameter of the reference that has a counterpart and is trained.

    Raises:
        UserError: the port is wrong to begin with, so that faults put into it tell nothing.
    """
    with scratch_job() as job:
        sides = described(request, job, console)
        weights, _ = randomize_constants(sides.weights, request.seed)
        write_pair(request, sides, weights, job)
        matched = {match.reference for match in sides.map.parameters}
        roles = {one.name: role_of(one) for one in sides.reference.parameters if one.name in matched}
        content = files.read_job(job)
        files.write_json(job / "job.json", replace(content, mutants=[weight_changed(name) for name in roles]))
        found = limits_of(job, roles, workers_of(request), console)
        reference, candidate = read_results(job)
        if culprit := first_at_fault(judge(reference, candidate), list(reference.tensors)):
            raise UserError(f"the port drifts as it is ({culprit.name}); toolkit parity says more")
        return found


def role_of(one: ParameterFacts) -> str:
    """Return a parameter's role, in the words of the families' limits: ``linear``, ``embedding``, ``bias``,
    ``norm_gain``, ...; ``other`` for a layer of the user's own."""
    if one.role == "norm":
        return "norm_bias" if leaf(one.name) == "bias" else "norm_gain"
    return "bias" if leaf(one.name) == "bias" and one.role != "other" else one.role
