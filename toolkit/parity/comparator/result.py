"""The measurements of a gate: the port in every dtype and its mutants.

Its own draws, loader, newly initialized weights and tokenizers are measured, too.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.parity.comparator.dtype import DtypeLedger, ReferenceFiles, difference_from_plain
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.loading import LoadedWeights
from toolkit.parity.comparator.own_draws import OwnDraws
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import BEGIN, OwnDraw
from toolkit.parity.exchange.results import (
    CandidateResult,
    GeneratorStats,
    MutantResult,
    NewWeights,
)
from toolkit.parity.job.job import Job
from toolkit.parity.measure.initial_values import Samples, compare_sides


@dataclass
class Side(MessageHandler):
    """Measurements of the port without a fault, or with a mutant in force. Each part is created at its first message.

    Attributes:
        reference: files that the port is compared with.
        is_mutant: whether a fault is in force.
        dtypes: measurements of the step, by dtype.
        new_values: samples of newly initialized parameters, by ``values:NAME`` or ``zero_rows:NAME``.
        new_place: file of the port that initializes parameters; empty until it comes.
        own_report: results that the port's process has measured itself.
        raised: error that the port raised; None if it raised none.
        has_loaded: whether the port has run its loader, which most mutants omit.
        has_drawn: whether the port has sent its own draws, which most mutants omit.
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

    @functools.cached_property
    def own_draws(self) -> OwnDraws:
        """The counts of the port's own draws."""
        return OwnDraws(self.reference)

    @functools.cached_property
    def loaded_weights(self) -> LoadedWeights:
        """The comparison of the weights that the port's loader reads."""
        return LoadedWeights(self.reference)

    def dtype(self, name: str) -> DtypeLedger:
        """Return the ledger of the step in the dtype with this name, which is created on first use."""
        if name not in self.dtypes:
            self.dtypes[name] = DtypeLedger(self.reference, is_mutant=self.is_mutant)
        return self.dtypes[name]

    def handle_of_dtype(self, message: Message, dtype: str) -> None:
        """Handle a message: with the ledger of ``dtype``, or as a message about no dtype if ``dtype`` is empty."""
        (self.dtype(dtype) if dtype else self).handle(message)

    @handles("draws step", "mask", "rotation", "sequence")
    def _count_draw(self, message: Message, draw: OwnDraw | None) -> None:
        """Count a draw of the port's own generator (:class:`.OwnDraws`).

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            draw: shape and rate of the draw.
        """
        self.has_drawn = True
        self.own_draws.handle(message)

    @handles("loader")
    def _begin_loading(self, message: Message, content: None) -> None:
        """Record that the port runs its loader.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self.has_loaded = True

    @handles("loaded")
    def _compare_loaded(self, message: Message, content: None) -> None:
        """Compare a parameter that the port's loader read (:class:`.LoadedWeights`).

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self.loaded_weights.handle(message)

    @handles("new values")
    def _keep_new_values(self, message: Message, content: None) -> None:
        """Keep the samples of a newly initialized parameter.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self.new_values[message.name] = message.value()

    @handles("new place")
    def _set_new_place(self, message: Message, place: str) -> None:
        """Record the file of the port that initializes parameters.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            place: path of the file.
        """
        self.new_place = place

    @handles("raised")
    def _set_raised(self, message: Message, reason: str) -> None:
        """Record the error that the port raised with the mutant.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            reason: error of the port in words.
        """
        self.raised = reason

    @handles("tokens", "tokenizer places", "loops", "leaks", "limited lines", "judged", "execution")
    def _set_own_report(self, message: Message, content: Any) -> None:
        """Record a result that the port's process has measured itself, under the message's kind.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        setattr(self.own_report, message.kind.replace(" ", "_"), content)

    def generators(self) -> GeneratorStats:
        """Return the counts of the port's own draws; empty for a user's port, which draws with Paddle's functions."""
        return self.own_draws.stats() if self.reference.job.pair is None else GeneratorStats()

    def new_weights(self) -> NewWeights:
        """Return the comparison of both sides' newly initialized parameters; empty for a user's port."""
        if self.reference.job.pair is not None:
            return NewWeights()
        theirs = files.read_tensors(self.reference.folder / "reference" / "initial.safetensors")
        return NewWeights(self.new_place, compare_sides(Samples.of(self.new_values), Samples.of(theirs)))


class Ledger(MessageHandler):
    """Measures all messages of a gate: of the port without a fault, and of each mutant.

    Args:
        job: the job.
        folder: job folder.

    Attributes:
        reference: files that the port is compared with.
        unmodified_port: measurements without a fault.
        mutants: measurements of each mutant that is not complete yet, by name.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.reference = ReferenceFiles(job, folder)
        self.unmodified_port = Side(self.reference)
        self.mutants = {name: Side(self.reference, is_mutant=True) for name in job.mutants}
        self._measured: dict[str, MutantResult] = {}
        self._mutant, self._dtype = "", ""

    def handle(self, message: Message) -> None:
        """Handle a message, which belongs to the mutant and dtype of the last ``begin`` message.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
        """
        if message.kind == BEGIN:
            super().handle(message)
            return
        side = self.mutants[self._mutant] if self._mutant else self.unmodified_port
        side.handle_of_dtype(message, self._dtype)

    @handles(BEGIN)
    def _begin_part(self, message: Message, part: list[str]) -> None:
        """Record the mutant and the dtype that the next messages are about.

        Args:
            message: message of the port's process.
            part: name of the mutant, empty for the port without a fault, and dtype.
        """
        self._begin(*part)

    def _begin(self, mutant: str = "", dtype: str = "") -> None:
        """Record the mutant and dtype of the next messages, and measure the previous mutant, which is complete.

        Args:
            mutant: name of the mutant; empty for the port without a fault.
            dtype: dtype of the step; empty for messages about no dtype.
        """
        if self._mutant and mutant != self._mutant:
            self._finish(self._mutant)
        self._mutant, self._dtype = mutant, dtype

    def _finish(self, name: str) -> None:
        """Measure the mutant with this name, which is complete, and forget its tensors."""
        self._measured[name] = self._of_mutant(self.mutants.pop(name))

    def _of_mutant(self, side: Side) -> MutantResult:
        """Return the measurements of a mutant, or only the error that the port raised with it."""
        if side.raised is not None:
            return MutantResult(raised=side.raised)
        correct_gradients = self.unmodified_port.dtypes["float64"].values if self.job.pair is not None else {}
        return MutantResult(
            dtypes={dtype: ledger.result() for dtype, ledger in side.dtypes.items()},
            generators=side.generators() if side.has_drawn else GeneratorStats(),
            loading_problems=side.loaded_weights.problems() if side.has_loaded else {},
            new_weights=side.new_weights() if side.new_place else NewWeights(),
            tokens=side.own_report.tokens,
            loops=side.own_report.loops,
            moved={
                name: difference_from_plain(ledger.values, name, value)
                for ledger in side.dtypes.values()
                for name, value in correct_gradients.items()
            },
        )

    def result(self) -> CandidateResult:
        """Return the measurements of the port and of its mutants.

        A dtype without messages is included, with every tensor marked missing.
        """
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
        )
