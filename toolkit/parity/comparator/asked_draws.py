"""The draws that the port asked for, compared with R64's draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.job.handover import Message
from toolkit.parity.job.job import Job
from toolkit.parity.job.messages import DrawRequest
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.evaluation import EVALUATIONS, TRAINING, name_in_run
from toolkit.parity.measure.naming import TensorName

#: Runs whose draws are compared.
COMPARED_RUNS = (TRAINING, *EVALUATIONS)
#: Kinds of draws that a port of this project must ask for.
DRAW_KINDS = ("dropout", "normal")


class ReferenceDraws(Protocol):
    """R64's draws by run, and the rates of its dropout masks."""

    job: Job

    @property
    def draws(self) -> Mapping[str, TensorFile]: ...

    @property
    def rates(self) -> Mapping[str, float]: ...


class AskedDraws(MessageHandler):
    """Draws asked for.

    Attributes:
        problems: description of each wrong request, by the draw's name.
    """

    def __init__(self, reference: ReferenceDraws) -> None:
        self.reference = reference
        self.problems: dict[str, str] = {}
        self._asked: set[str] = set()

    @handles("asked")
    def _check_request(self, message: Message, request: DrawRequest) -> None:
        name = TensorName.parse(message.name)
        reference_name, draws = str(name.without_run), self.reference.draws[name.evaluation or TRAINING]
        if reference_name not in draws:
            self.problems[message.name] = f"{request.what} is drawn here, the reference draws nothing"
            return
        self._asked.add(message.name)
        if (shape := list(draws.shape(reference_name))) != request.shape:
            problem = f"{request.what} is drawn with shape {request.shape}, the reference's is {shape}"
            self.problems[message.name] = problem
        elif request.rate is not None and request.rate != self.reference.rates[reference_name]:
            problem = f"dropout of {request.rate}, the reference has {self.reference.rates[reference_name]}"
            self.problems[message.name] = problem

    def unused(self) -> list[str]:
        """Return draws of the reference that matter to it, and that the port never asked for."""
        return sorted(
            name_in_run(run, name)
            for run in COMPARED_RUNS
            if run in self.reference.draws
            for name in self.reference.draws[run]
            if self._matters(name) and name_in_run(run, name) not in self._asked
        )

    def _matters(self, name: str) -> bool:
        pair = self.reference.job.pair
        if pair is None:
            return TensorName.parse(name).kind in DRAW_KINDS
        return pair.map is not None and name in pair.map.drawn
