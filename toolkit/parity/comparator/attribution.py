"""Errors of P32, the port's float32 step, against R64 with one loop or kind of kernel replaced at a time."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.comparator.array_differences import difference
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import BEGIN
from toolkit.parity.exchange.results import AttributionResult, Execution
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure.error_stats import TensorStats


class Ledger(MessageHandler):
    """Measures the errors of P32 with each replacement that the model uses.

    Args:
        job: the job.
        folder: job folder.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self._truth = TensorFile(folder / "reference" / "float64.safetensors")
        self._found = AttributionResult()
        self._errors: dict[str, TensorStats] = {}

    @handles(BEGIN)
    def _begin_replacement(self, message: Message, part: list[str]) -> None:
        """Start the errors of the next replacement.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            part: name of the replaced part; not used.
        """
        self._errors = {}

    @handles("tensor")
    def _measure_tensor(self, message: Message, content: None) -> None:
        """Record the difference of a tensor from R64's tensor of the same name.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        if message.name in self._truth:
            self._errors[message.name] = difference(message, self._truth[message.name])

    @handles("used")
    def _keep_errors(self, message: Message, kind: str) -> None:
        """Record the errors of the last replacement under its name, since the model uses the replaced part.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            kind: kind of the replaced part: ``loop`` or ``kernel``.
        """
        errors_by_name = self._found.loops if kind == "loop" else self._found.kernels
        errors_by_name[message.name] = self._errors

    @handles("execution")
    def _ignore_execution(self, message: Message, execution: Execution) -> None:
        """Do nothing with the facts about the process: the report shows the gate's own facts.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            execution: facts about the process, such as versions and device.
        """

    def result(self) -> AttributionResult:
        """Return the errors of each tensor, by the loop or kind of kernel that is replaced."""
        return self._found
