"""Measurements of the operation trace: each operation of the port, on R64's own input, is compared with R64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.parity.comparator.choices import Choices
from toolkit.parity.comparator.dtype import ReferenceFiles
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import BEGIN, CallOrigin
from toolkit.parity.exchange.results import (
    CandidateFacts,
    Execution,
    ForcedInputDtype,
    ForcedInputResult,
    FunctionCall,
    Place,
)
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.fingerprint import take_fingerprint
from toolkit.parity.measure.masked_scores import split_masked_scores


class Points(MessageHandler):
    """Measures the operations of one dtype that R64 also has. If a tensor comes twice, the second counts.

    Args:
        reference: files of the reference.
        truth: R64's tensors by name.
        padding: masks of the padding elements, (B, T, D), by name of the output; only outputs that the reference packs.
    """

    def __init__(self, reference: ReferenceFiles, truth: TensorFile, padding: Mapping[str, np.ndarray]) -> None:
        self.truth = truth
        self.padding = padding
        self.measured = ForcedInputDtype({}, {}, {})
        self._facts = CandidateFacts()
        self._choices = Choices(reference, self._facts)

    @handles("buckets")
    def _compare_buckets(self, message: Message, content: None) -> None:
        """Record the hash buckets of R64's vectors that differ from R64's buckets.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self._choices.handle(message)

    @handles("signs", "choice", "asked")
    def _ignore_choice(self, message: Message, content: Any) -> None:
        """Do nothing with a choice: an operation in isolation has R64's own choices.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """

    @handles("lines")
    def _add_lines(self, message: Message, lines: dict[str, str]) -> None:
        """Record the source line of an operation, by the name of its tensor."""
        self.measured.lines |= lines

    @handles("places")
    def _set_places(self, message: Message, places: dict[str, Place]) -> None:
        """Record the source locations of the port's modules.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            places: source location of each module, by its name.
        """
        self.measured.modules = places

    @handles("call")
    def _add_call(self, message: Message, origin: CallOrigin) -> None:
        """Record a call of one of Paddle's functions, with the fingerprint of its output.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            origin: location and inputs of the call.
        """
        self.measured.calls.append(
            FunctionCall(
                message.name,
                origin.where,
                origin.inputs,
                origin.layer,
                origin.num_tensors,
                take_fingerprint(message.value()),
            )
        )

    @handles("computed_by")
    def _set_computed_by(self, message: Message, computed_by: dict[str, int]) -> None:
        """Record the number of the call that computed each tensor, by the tensor's name."""
        self.measured.computed_by = computed_by

    @handles("entered_at")
    def _set_entered_at(self, message: Message, entered_at: dict[str, str]) -> None:
        """Record the source line that calls each module, by the name of the module's input.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            entered_at: source line, by name of the module's input.
        """
        self.measured.entered_at = entered_at

    @handles("tensor")
    def _measure(self, message: Message, content: None) -> None:
        """Record the error of an operation's result or gradient against R64's.

        The axes may differ between the sides if the elements have the same order.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        truth = self.truth.get(message.name)
        if truth is None:
            return
        value = message.value()
        value = value.reshape(truth.shape) if value.size == truth.size else value
        is_padding = self.padding.get(message.name.removeprefix("gradient:"))
        if message.name.startswith("gradient:") and is_padding is not None and is_padding.shape == value.shape:
            # A padded output may get a gradient in its padding, which no layer reads. Packed sequences have none.
            value = np.where(is_padding, truth, value)
        for part, own, true in split_masked_scores(message.name, value, truth, self.truth):
            self.measured.tensors[part] = error_stats.measure_error(own, true)
            if message.name in self.measured.lines:
                self.measured.lines[part] = self.measured.lines[message.name]

    @handles("awaited")
    def _add_missing(self, message: Message, gradient_names: list[str]) -> None:
        """Record as missing each of these gradients that R64 has and the port did not send.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            gradient_names: names of the gradients that the port should have sent.
        """
        for name in set(gradient_names) & self.truth.keys() - self.measured.tensors.keys():
            self.measured.tensors[name] = TensorStats([], missing=True)

    def result(self) -> ForcedInputDtype:
        """Return the measurements of all operations in this dtype."""
        self.measured.bucket_flips = self._facts.bucket_flips
        return self.measured


class Ledger(MessageHandler):
    """Measures the operation trace of the port and of its mutants, by mutant and dtype.

    Args:
        job: the job.
        folder: job folder.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        files.wait_for_reference(folder, "forced_input.json", "forced_input")
        self._truth = TensorFile(folder / "reference" / "forced_input.safetensors")
        self._padding = files.read_tensors(folder / "reference" / files.PADDING)
        self._given = ReferenceFiles(job, folder)
        self._points: dict[tuple[str, str], Points] = {}
        self._now: tuple[str, str] = ("", "")
        self._stopped: set[str] = set()

    def handle(self, message: Message) -> None:
        """Handle a message about the process, or a message about the step of the last ``begin`` message.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
        """
        if self.can_handle(message.kind):
            super().handle(message)
            return
        if self._now not in self._points:
            self._points[self._now] = Points(self._given, self._truth, self._padding)
        self._points[self._now].handle(message)

    @handles(BEGIN)
    def _begin(self, message: Message, part: list[str]) -> None:
        """Record the mutant (empty for the port without a fault) and the dtype of the next messages."""
        mutant, dtype = part
        self._now = mutant, dtype

    @handles("raised")
    def _stop(self, message: Message, reason: str) -> None:
        """Record that the port raised an error with the current mutant, so that its measurements are omitted.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            reason: error of the port in words.
        """
        self._stopped.add(self._now[0])

    @handles("execution")
    def _ignore_execution(self, message: Message, execution: Execution) -> None:
        """Do nothing with the facts about the process: the report shows the gate's own facts.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            execution: facts about the process, such as versions and device.
        """

    def result(self) -> ForcedInputResult:
        """Return the measurements by dtype, and by mutant and dtype.

        A mutant has none if it changes no tensor, or if the port raised an error with it.
        """
        result = ForcedInputResult(mutants={name: {} for name in self.job.mutants})
        for (mutant, dtype), points in self._points.items():
            if mutant not in self._stopped:
                (result.mutants[mutant] if mutant else result.dtypes)[dtype] = points.result()
        return result
