"""Comparison of the port's float32 step, run with the reference's kernels, with R32 bit for bit."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.results import BitwiseResult, Execution, Place
from toolkit.parity.job.job import Job
from toolkit.parity.measure import ulp
from toolkit.parity.measure.ulp import BitDifference


class Ledger(MessageHandler):
    """Compares each tensor of the port's float32 step with R32, bit for bit.

    Args:
        job: the job.
        folder: job folder.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        files.wait_for_reference(folder, "order.json")
        self._theirs = files.read_tensors(folder / "reference" / "float32.safetensors")
        self._order = files.read_json(folder / "reference" / "order.json")
        self._ours: dict[str, BitDifference] = {}
        self._result = BitwiseResult({}, [], {}, {})

    @handles("tensor")
    def _compare_tensor(self, message: Message, content: None) -> None:
        """Compare a tensor with R32's bit for bit, or record that R32 has no tensor of its name.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        if message.name in self._theirs:
            self._ours[message.name] = ulp.compare_bits(message.value(), self._theirs[message.name])
        else:
            self._result.extra.append(message.name)

    @handles("calls")
    def _set_calls(self, message: Message, calls: dict[str, int]) -> None:
        """Record how often each kernel of the reference was called."""
        self._result.calls = calls

    @handles("places")
    def _set_places(self, message: Message, places: dict[str, Place]) -> None:
        """Record the source locations of the port's modules.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            places: source location of each module, by its name.
        """
        self._result.places = places

    @handles("execution")
    def _set_execution(self, message: Message, execution: Execution) -> None:
        """Record the facts about the port's process.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            execution: facts about the process, such as versions and device.
        """
        self._result.execution = execution

    def result(self) -> BitwiseResult:
        """Return the comparisons of R32's tensors in execution order, and the recorded facts."""
        self._result.tensors = {name: self._ours.get(name) or self._missing(name) for name in self._order}
        self._result.extra = sorted(set(self._result.extra))
        return self._result

    def _missing(self, name: str) -> BitDifference:
        """Return the comparison of a tensor of R32 that the port did not compute."""
        size = self._theirs[name].size
        return BitDifference(size, size, ulp.NAN_DISTANCE, "not computed by the port")
