"""The operation trace: each operation of the port, on R64's own input, against R64's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from toolkit.parity.comparator.choices import Choices
from toolkit.parity.comparator.dtype import ReferenceFiles
from toolkit.parity.job import files
from toolkit.parity.job.handover import Message
from toolkit.parity.job.job import Job
from toolkit.parity.job.records import from_json
from toolkit.parity.job.results import CandidateFacts, ForcedInputDtype, ForcedInputResult, FunctionCall, Place
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.fingerprint import fingerprint
from toolkit.parity.measure.masked_scores import compared


class Points:
    """Measures the operations of one dtype, as far as R64 has them. If a tensor comes twice, the second counts.

    Args:
        reference: files of the reference.
        truth: R64's tensors by name.
        padding: by name of an output that the reference packs, which of its elements are padding, (B, T, D).
    """

    def __init__(self, reference: ReferenceFiles, truth: TensorFile, padding: Mapping[str, np.ndarray]) -> None:
        self.truth = truth
        self.padding = padding
        self.measured = ForcedInputDtype({}, {}, {})
        self._facts = CandidateFacts()
        self._choices = Choices(reference, self._facts)

    def handle(self, message: Message) -> None:
        """Handle a message."""
        if message.kind == "tensor":
            self._measure(message)
        elif message.kind == "buckets":
            self._choices.handle_buckets(message)
        elif message.kind == "lines":
            self.measured.lines |= from_json(dict[str, str], message.content, "lines")
        elif message.kind == "places":
            self.measured.modules = from_json(dict[str, Place], message.content, "places")
        elif message.kind == "awaited":
            self._add_missing(set(message.content))
        elif message.kind == "call":
            where, inputs, layer, num_tensors = message.content
            call = FunctionCall(message.name, where, inputs, layer, num_tensors, fingerprint(message.value()))
            self.measured.calls.append(call)
        elif message.kind == "computed_by":
            self.measured.computed_by = from_json(dict[str, int], message.content, "computed_by")
        elif message.kind == "entered_at":
            self.measured.entered_at = from_json(dict[str, str], message.content, "entered_at")

    def _measure(self, message: Message) -> None:
        """Compare a tensor. Its axes may differ between the sides if its elements have the same order."""
        truth = self.truth.get(message.name)
        if truth is None:
            return
        value = message.value()
        value = value.reshape(truth.shape) if value.size == truth.size else value
        is_padding = self.padding.get(message.name.removeprefix("gradient:"))
        if message.name.startswith("gradient:") and is_padding is not None and is_padding.shape == value.shape:
            # A padded output may get a gradient in its padding, which no layer reads. Packed sequences have none.
            value = np.where(is_padding, truth, value)
        for part, own, true in compared(message.name, value, truth, self.truth):
            self.measured.tensors[part] = error_stats.difference(own, true)
            if message.name in self.measured.lines:
                self.measured.lines[part] = self.measured.lines[message.name]

    def _add_missing(self, gradient_names: set[str]) -> None:
        """Mark as missing each gradient of the reference that the port did not send."""
        for name in gradient_names & self.truth.keys() - self.measured.tensors.keys():
            self.measured.tensors[name] = TensorStats([], missing=True)

    def result(self) -> ForcedInputDtype:
        """Return the measurements."""
        self.measured.bucket_flips = self._facts.bucket_flips
        return self.measured


class Ledger:
    """Measured by mutant and dtype."""

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
        """Handle a message of the port's process about the part that it began last."""
        if message.kind == "begin":
            mutant, dtype = message.content
            self._now = mutant, dtype
        elif message.kind == "raised":
            self._stopped.add(self._now[0])
        elif message.kind != "execution":
            if self._now not in self._points:
                self._points[self._now] = Points(self._given, self._truth, self._padding)
            self._points[self._now].handle(message)

    def result(self) -> ForcedInputResult:
        """Return the measurements; none of mutants that concern no tensor or raise."""
        result = ForcedInputResult(mutants={name: {} for name in self.job.mutants})
        for (mutant, dtype), points in self._points.items():
            if mutant not in self._stopped:
                (result.mutants[mutant] if mutant else result.dtypes)[dtype] = points.result()
        return result
