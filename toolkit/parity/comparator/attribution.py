"""Errors of P32 against R64 with one loop or kind of kernel replaced."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.comparator.received import difference
from toolkit.parity.job.handover import Message
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import AttributionResult
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.error_stats import TensorStats


class Ledger:
    """The errors of each replacement that the model uses."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._truth = TensorFile(folder / "reference" / "float64.safetensors")
        self._found = AttributionResult()
        self._errors: dict[str, TensorStats] = {}

    def handle(self, message: Message) -> None:
        """Handle a tensor of the last replacement, or the notice that the model uses it."""
        if message.kind == "begin":
            self._errors = {}
        elif message.kind == "tensor" and message.name in self._truth:
            self._errors[message.name] = difference(message, self._truth[message.name])
        elif message.kind == "used":
            errors_by_name = self._found.loops if message.content == "loop" else self._found.kernels
            errors_by_name[message.name] = self._errors

    def result(self) -> AttributionResult:
        """Return the measurements."""
        return self._found
