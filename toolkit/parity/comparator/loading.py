"""Comparison of the weights that the port's loader and the reference's ``from_pretrained`` read from a checkpoint.

If the model has fewer positions than the checkpoint, the weights of the job are compared with the matching part of the
checkpoint, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from toolkit.parity.comparator.array_differences import differing
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.exchange.files import CHECKPOINT, POSITIONS
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.tensor_file import TensorFile

if TYPE_CHECKING:
    from toolkit.parity.comparator.dtype import ReferenceFiles

#: Problem of a parameter that only the reference reads, and of a parameter that only the port reads.
NOT_BY_THE_PORT, BY_THE_PORT_ALONE = (
    "the reference reads it, the port does not",
    "the port reads it, the reference does not",
)


class LoadedWeights(MessageHandler):
    """Compares the parameters that the port's loader reads with the reference's.

    Args:
        reference: files that the port is compared with.
    """

    def __init__(self, reference: ReferenceFiles) -> None:
        self.reference = reference
        self._found: dict[str, str] = {}

    @handles("loaded")
    def _compare_parameter(self, message: Message, content: None) -> None:
        """Record how a parameter of the port's loader differs from the reference's: name, shape or number of values.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        theirs = self._theirs()
        name = message.name
        if name not in theirs:
            self._found[name] = BY_THE_PORT_ALONE
        elif theirs.shape(name) != message.shape:
            self._found[name] = _of_shapes(message.shape, theirs.shape(name))
        else:
            self._found[name] = _of_count(differing(message, theirs[name]), theirs[name].size)

    def problems(self) -> dict[str, str]:
        """Return a description of each parameter that the port reads differently, by the parameter's name.

        The result is empty if the job has no checkpoint.
        """
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
        """Return the parameters that the reference's ``from_pretrained`` reads, by name."""
        return TensorFile(self.reference.folder / "reference" / CHECKPOINT)

    def _cut_problems(self) -> Iterator[tuple[str, str]]:
        """Yield the name and problem of each weight of the job that differs from the matching part of the checkpoint.

        Only for a model with fewer positions than the checkpoint. A position table is compared with the values that the
        reference's evaluation reads.
        """
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
    """Describe a parameter that the two sides read with different shapes.

    Args:
        ours: shape in the port.
        theirs: shape in the reference.
    """
    return f"the port reads shape {list(ours)}, the reference {list(theirs)}"


def _of_count(differing: int, size: int) -> str:
    """Describe the number of differing values of a parameter with ``size`` elements; empty if none differs."""
    return f"{differing} of {size} values are not those that the reference reads" if differing else ""
