"""The measurements of a gate: the port in every dtype, its own draws, loader, new weights and tokenizers, and its
mutants."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.parity.comparator.dtype import DtypeLedger, ReferenceFiles, difference_from_plain
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.loading import LoadedWeights
from toolkit.parity.comparator.own_draws import OwnDraws
from toolkit.parity.job import files
from toolkit.parity.job.handover import Message
from toolkit.parity.job.job import Job
from toolkit.parity.job.messages import BEGIN, OwnDraw
from toolkit.parity.job.results import (
    CandidateResult,
    GeneratorStats,
    MutantResult,
    NewWeights,
)
from toolkit.parity.measure import loop_accuracy
from toolkit.parity.measure.initial_values import Samples, compare_sides
from toolkit.parity.measure.loop_accuracy import LoopCall, LoopError


@dataclass
class Side(MessageHandler):
    """Measurements of the port without or with a fault in force; each part is created at its first message.

    Attributes:
        own_report: results that the port's process has measured itself.
        has_drawn: whether the port's own draws have come, which a trial of most faults leaves out.
    """

    reference: ReferenceFiles
    is_mutant: bool = False
    dtypes: dict[str, DtypeLedger] = field(default_factory=dict)
    new_values: dict[str, Any] = field(default_factory=dict)
    new_place: str = ""
    own_report: CandidateResult = field(default_factory=CandidateResult)
    raised: str | None = None
    has_loaded: bool = False
    has_drawn: bool = False
    _loop: tuple[LoopCall, list[np.ndarray]] | None = None

    @functools.cached_property
    def own_draws(self) -> OwnDraws:
        return OwnDraws(self.reference)

    @functools.cached_property
    def loaded_weights(self) -> LoadedWeights:
        return LoadedWeights(self.reference)

    def dtype(self, name: str) -> DtypeLedger:
        if name not in self.dtypes:
            self.dtypes[name] = DtypeLedger(self.reference, self.is_mutant)
        return self.dtypes[name]

    def handle_of_dtype(self, message: Message, dtype: str) -> None:
        """Handle a message, about the step in ``dtype`` if that is not empty."""
        (self.dtype(dtype) if dtype else self).handle(message)

    @handles("draws step", "mask", "rotation", "sequence")
    def _count_draw(self, message: Message, draw: OwnDraw | None) -> None:
        self.has_drawn = True
        self.own_draws.handle(message)

    @handles("loop")
    def _begin_loop(self, message: Message, call: LoopCall) -> None:
        self._finish_loop()
        self._loop = call, []

    @handles("loop output")
    def _keep_loop_output(self, message: Message, content: None) -> None:
        assert self._loop is not None
        self._loop[1].append(message.value())

    @handles("loader")
    def _begin_loading(self, message: Message, content: None) -> None:
        self.has_loaded = True

    @handles("loaded")
    def _compare_loaded(self, message: Message, content: None) -> None:
        self.loaded_weights.handle(message)

    @handles("new values")
    def _keep_new_values(self, message: Message, content: None) -> None:
        self.new_values[message.name] = message.value()

    @handles("new place")
    def _set_new_place(self, message: Message, place: str) -> None:
        self.new_place = place

    @handles("raised")
    def _set_raised(self, message: Message, reason: str) -> None:
        self.raised = reason

    @handles("tokens", "tokenizer places", "leaks", "limited lines", "judged", "execution")
    def _set_own_report(self, message: Message, content: Any) -> None:
        setattr(self.own_report, message.kind.replace(" ", "_"), content)

    def _finish_loop(self) -> None:
        """Measure the last compiled loop: all its outputs have come."""
        if self._loop is not None:
            self.own_report.loops.append(loop_accuracy.measure_error(*self._loop))
            self._loop = None

    def generators(self) -> GeneratorStats:
        """Return the counts of the port's own draws.

        A user's port draws with Paddle, so only the source locations of its draws are compared.
        """
        return self.own_draws.stats() if self.reference.job.pair is None else GeneratorStats()

    def loops_by_themselves(self) -> list[LoopError]:
        """Return the errors of the compiled loops."""
        self._finish_loop()
        return self.own_report.loops

    def new_weights(self) -> NewWeights:
        """Return the counts of both sides' new parameters; empty for a user's port."""
        if self.reference.job.pair is not None:
            return NewWeights()
        theirs = files.read_tensors(self.reference.folder / "reference" / "initial.safetensors")
        return NewWeights(self.new_place, compare_sides(Samples.of(self.new_values), Samples.of(theirs)))


class Ledger(MessageHandler):
    """Measurements of all messages of one job."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.reference = ReferenceFiles(job, folder)
        self.unmodified_port = Side(self.reference)
        self.mutants = {name: Side(self.reference, is_mutant=True) for name in job.mutants}
        self._measured: dict[str, MutantResult] = {}
        self._mutant, self._dtype = "", ""

    def handle(self, message: Message) -> None:
        """Handle a message of the port's process about the part that it began last."""
        if message.kind == BEGIN:
            super().handle(message)
            return
        side = self.mutants[self._mutant] if self._mutant else self.unmodified_port
        side.handle_of_dtype(message, self._dtype)

    @handles(BEGIN)
    def _begin_part(self, message: Message, part: list[str]) -> None:
        self._begin(*part)

    def _begin(self, mutant: str = "", dtype: str = "") -> None:
        if self._mutant and mutant != self._mutant:
            self._finish(self._mutant)
        self._mutant, self._dtype = mutant, dtype

    def _finish(self, name: str) -> None:
        """Measure a mutant that is complete, and forget its tensors."""
        self._measured[name] = self._of_mutant(self.mutants.pop(name))

    def _of_mutant(self, side: Side) -> MutantResult:
        if side.raised is not None:
            return MutantResult(raised=side.raised)
        correct_gradients = self.unmodified_port.dtypes["float64"].values if self.job.pair is not None else {}
        return MutantResult(
            dtypes={dtype: ledger.result() for dtype, ledger in side.dtypes.items()},
            generators=side.generators() if side.has_drawn else GeneratorStats(),
            loading_problems=side.loaded_weights.problems() if side.has_loaded else {},
            new_weights=side.new_weights() if side.new_place else NewWeights(),
            tokens=side.own_report.tokens,
            loops=side.loops_by_themselves(),
            moved={
                name: difference_from_plain(ledger.values, name, value)
                for ledger in side.dtypes.values()
                for name, value in correct_gradients.items()
            },
        )

    def result(self) -> CandidateResult:
        """Return all measurements. A dtype without messages is included, with every tensor marked missing."""
        self._begin()
        for name in list(self.mutants):
            self._finish(name)
        side = self.unmodified_port
        return replace(
            side.own_report,
            dtypes={dtype: side.dtype(dtype).result() for dtype in self.job.dtypes},
            generators=side.generators(),
            loading_problems=side.loaded_weights.problems(),
            new_weights=side.new_weights(),
            mutants={name: self._measured[name] for name in self.job.mutants},
            loops=side.loops_by_themselves(),
        )
