"""Fill the job folder of a gate for a family of this toolkit or for a user's pair, which is described first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from models.families import part
from toolkit.parity.exchange import files
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.pairs.describe import Sides, describe_sides, write_pair
from toolkit.parity.pairs.words import last_word
from toolkit.parity.request.build import write_request
from toolkit.parity.request.request import GateRequest


@dataclass(frozen=True)
class PreparedJob:
    """A job folder that both workers can run.

    Attributes:
        job: path of the folder.
        randomized: number of constant parameters whose values were replaced by random values.
        roles: role of each parameter that faults may change: ``linear``, ``embedding``, ``bias``, ``norm_gain``, ...;
            ``other`` in a user's own layer.
        sides: descriptions of a pair; None for a family.
    """

    job: Path
    randomized: int
    roles: dict[str, str]
    sides: Sides | None = None

    def put_mutants(self, names: Sequence[str]) -> None:
        """Request measurements of the port with each of these faults, too."""
        files.write_json(self.job / "job.json", replace(files.read_job(self.job), mutants=list(names)))


def prepare_job(request: GateRequest, job: Path, console: Console) -> PreparedJob:
    """Fill a job folder, with random values for constant parameters.

    Args:
        request: request for a family of this toolkit, or for a pair.
        job: folder of the job.
        console: console for progress.

    Raises:
        UserError: a side of a pair cannot be built or run.
        Inconclusive: the interpreter of a side lacks its framework.
    """
    if request.pair is None:
        weights, num_randomized = randomize_constants(request.weights, request.seed)
        write_request(request, weights, job)
        table = part(request.model, "weights").parameters(
            part(request.model, "schema").resolve(request.config), request.head
        )
        return PreparedJob(job, num_randomized, {name: role for name, (_, role) in table.items()})
    sides = describe_sides(request, job, console)
    tables = {match.reference for match in sides.map.buffers}
    trained_weights = {name: value for name, value in sides.weights.items() if name not in tables}
    weights, num_randomized = randomize_constants(trained_weights, request.seed)
    weights |= {name: sides.weights[name] for name in tables & sides.weights.keys()}
    write_pair(request, sides, weights, job)
    matched_names = {match.reference for match in sides.map.parameters}
    roles = {one.name: role_of(one) for one in sides.reference.parameters if one.name in matched_names}
    return PreparedJob(job, num_randomized, roles, sides)


def role_of(parameter: ParameterFacts) -> str:
    """Return the role of a pair's parameter (:attr:`PreparedJob.roles`)."""
    if parameter.role == "norm":
        return "norm_bias" if last_word(parameter.name) == "bias" else "norm_gain"
    return "bias" if last_word(parameter.name) == "bias" and parameter.role != "other" else parameter.role
