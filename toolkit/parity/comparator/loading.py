"""Compares the weights that the port's loader reads from a checkpoint with the reference's own ``from_pretrained``, and
the weights of the job with the matching part of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.received import differing
from toolkit.parity.job.files import CHECKPOINT, POSITIONS
from toolkit.parity.job.handover import Message
from toolkit.parity.job.tensor_file import TensorFile

if TYPE_CHECKING:
    from toolkit.parity.comparator.dtype import ReferenceFiles

#: Problem of a parameter that only one side reads.
NOT_BY_THE_PORT, BY_THE_PORT_ALONE = (
    "the reference reads it, the port does not",
    "the port reads it, the reference does not",
)


class LoadedWeights(MessageHandler):
    """The parameters that the port's loader reads."""

    def __init__(self, reference: ReferenceFiles) -> None:
        self.reference = reference
        self._found: dict[str, str] = {}

    @handles("loaded")
    def _compare_parameter(self, message: Message, content: None) -> None:
        theirs = self._theirs()
        name = message.name
        if name not in theirs:
            self._found[name] = BY_THE_PORT_ALONE
        elif theirs.shape(name) != message.shape:
            self._found[name] = _of_shapes(message.shape, theirs.shape(name))
        else:
            self._found[name] = _of_count(differing(message, theirs[name]), theirs[name].size)

    def problems(self) -> dict[str, str]:
        """Parameter -> how the port reads it differently, value for value; empty if no checkpoint is read."""
        job = self.reference.job
        if job.checkpoint is None or job.pair is not None:
            return {}
        descriptions = {**dict.fromkeys(self._theirs(), NOT_BY_THE_PORT), **self._found}
        loader = f"from the checkpoint (models/{job.model}/weights.py)"
        return {
            **{name: f"{loader}: {text}" for name, text in descriptions.items() if text},
            **dict(self._cut_problems()),
        }

    def _theirs(self) -> TensorFile:
        return TensorFile(self.reference.folder / "reference" / CHECKPOINT)

    def _cut_problems(self) -> Iterator[tuple[str, str]]:
        """For a model with fewer positions than the checkpoint: how the weights given to both sides differ from the
        checkpoint's. A position table is compared with the values that the reference's evaluation reads."""
        if self.reference.job.checkpoint_config is None:
            return
        theirs, reference = self._theirs(), self.reference.weights
        position_values = TensorFile(self.reference.folder / "reference" / POSITIONS)
        for name in theirs.keys() & reference.keys():
            expected_values = position_values[name] if name in position_values else theirs[name]
            if expected_values.size > 1 and np.ptp(expected_values) == 0:
                continue  # the gate randomizes constants
            value = reference[name]
            if value.shape != expected_values.shape:
                problem = _of_shapes(value.shape, expected_values.shape)
            else:
                problem = _of_count(int((value != expected_values).sum()), expected_values.size)
            if problem:
                yield name, f"cut to fewer positions (models/{self.reference.job.model}/positions.py): {problem}"


def _of_shapes(ours: tuple[int, ...], theirs: tuple[int, ...]) -> str:
    return f"the port reads shape {list(ours)}, the reference {list(theirs)}"


def _of_count(differing: int, size: int) -> str:
    return f"{differing} of {size} values are not those that the reference reads" if differing else ""
