"""Errors of P32 against R64 with one loop or kind of kernel replaced."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.received import difference
from toolkit.parity.job.handover import Message
from toolkit.parity.job.job import Job
from toolkit.parity.job.messages import BEGIN
from toolkit.parity.job.results import AttributionResult, Execution
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.error_stats import TensorStats


class Ledger(MessageHandler):
    """The errors of each replacement that the model uses."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._truth = TensorFile(folder / "reference" / "float64.safetensors")
        self._found = AttributionResult()
        self._errors: dict[str, TensorStats] = {}

    @handles(BEGIN)
    def _begin_replacement(self, message: Message, content: list[str]) -> None:
        self._errors = {}

    @handles("tensor")
    def _measure_tensor(self, message: Message, content: None) -> None:
        if message.name in self._truth:
            self._errors[message.name] = difference(message, self._truth[message.name])

    @handles("used")
    def _keep_errors(self, message: Message, kind: str) -> None:
        """Keep the errors of the last replacement, since the model uses it."""
        errors_by_name = self._found.loops if kind == "loop" else self._found.kernels
        errors_by_name[message.name] = self._errors

    @handles("execution")
    def _ignore_execution(self, message: Message, execution: Execution) -> None:
        """Do nothing; the report has the execution of the gate itself."""

    def result(self) -> AttributionResult:
        """Return the measurements."""
        return self._found
