"""Comparison of the draws that the port requested with R64's draws: name, shape and dropout rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import DrawRequest
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure.evaluation import EVALUATIONS, TRAINING, name_in_run
from toolkit.parity.measure.naming import TensorName

#: Runs whose draws are compared: the step and two evaluations.
COMPARED_RUNS = (TRAINING, *EVALUATIONS)
#: Kinds of draws that a port of this project must request if R64 has them.
DRAW_KINDS = ("dropout", "normal")


class ReferenceDraws(Protocol):
    """Interface of R64's draws by run, and of the rates of its dropout masks.

    Attributes:
        job: the job.
        draws: R64's draws and choices, by run and name.
        rates: rates of R64's dropout masks, by name.
    """

    job: Job

    @property
    def draws(self) -> Mapping[str, TensorFile]: ...

    @property
    def rates(self) -> Mapping[str, float]: ...


class RequestedDraws(MessageHandler):
    """Compares each draw that the port requests with R64's draw of the same name.

    Args:
        reference: R64's draws.

    Attributes:
        problems: description of each wrong request, by the draw's name.
    """

    def __init__(self, reference_draws: ReferenceDraws) -> None:
        self.reference = reference_draws
        self.problems: dict[str, str] = {}
        self._asked: set[str] = set()

    @handles("asked")
    def _check_request(self, message: Message, request: DrawRequest) -> None:
        """Record a problem if R64 has no such draw, or if its shape or dropout rate is different.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            request: draw that the port asks for: its kind, shape and rate.
        """
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
        """Return the names of R64's draws that the port should have requested and did not request."""
        return sorted(
            name_in_run(run, name)
            for run in COMPARED_RUNS
            if run in self.reference.draws
            for name in self.reference.draws[run]
            if self._matters(name) and name_in_run(run, name) not in self._asked
        )

    def _matters(self, name: str) -> bool:
        """Return whether a port must request the draw of R64 with this name."""
        pair = self.reference.job.pair
        if pair is None:
            return TensorName.parse(name).kind in DRAW_KINDS
        return pair.map is not None and name in pair.map.drawn
