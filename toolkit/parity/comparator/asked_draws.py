"""The draws that the port asked for, against those that R64 made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from toolkit.parity.job.handover import Message
from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.evaluation import EVALUATIONS, TRAINING, named
from toolkit.parity.measure.naming import TensorName

#: Runs whose draws are compared.
COMPARED = (TRAINING, *EVALUATIONS)
#: Kinds of draws that a port of this project must ask for.
DRAWN = ("dropout", "normal")


class Drawn(Protocol):
    """What R64 drew: by run the draws, and the rates of its dropout masks."""

    job: Job

    @property
    def draws(self) -> Mapping[str, TensorFile]: ...

    @property
    def rates(self) -> Mapping[str, float]: ...


class AskedDraws:
    """Draws asked for.

    Attributes:
        problems: draws that were asked for wrongly: name -> what is wrong.
    """

    def __init__(self, given: Drawn) -> None:
        self.given = given
        self.problems: dict[str, str] = {}
        self._asked: set[str] = set()

    def handle(self, message: Message) -> None:
        """Take in a draw that is asked for: ``what`` it is, its ``shape``, and a mask's ``rate``."""
        name, asked = TensorName.parse(message.name), message.content
        own, drawn = str(name.in_its_run), self.given.draws[name.evaluation or TRAINING]
        if own not in drawn:
            self.problems[message.name] = f"{asked['what']} is drawn here, the reference draws nothing"
            return
        self._asked.add(message.name)
        if (shape := list(drawn.shape(own))) != asked["shape"]:
            problem = f"{asked['what']} is drawn with shape {asked['shape']}, the reference's is {shape}"
            self.problems[message.name] = problem
        elif "rate" in asked and asked["rate"] != self.given.rates[own]:
            problem = f"dropout of {asked['rate']}, the reference has {self.given.rates[own]}"
            self.problems[message.name] = problem

    def unused(self) -> list[str]:
        """Draws of the reference that matter to it, and that the port never asked for."""
        return sorted(
            named(run, name)
            for run in COMPARED
            if run in self.given.draws
            for name in self.given.draws[run]
            if self._matters(name) and named(run, name) not in self._asked
        )

    def _matters(self, name: str) -> bool:
        pair = self.given.job.pair
        if pair is None:
            return TensorName.parse(name).kind in DRAWN
        return pair.map is not None and name in pair.map.drawn
