"""Counts of the port's own dropout masks and random rotations (verdict 7), from the messages of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.requested_draws import DRAW_KINDS
from toolkit.parity.comparator.rng_stats import DrawCounter
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import OwnDraw
from toolkit.parity.exchange.results import GeneratorStats, MaskStats
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.naming import TensorName

if TYPE_CHECKING:
    from toolkit.parity.comparator.dtype import ReferenceFiles


#: Problem of a draw that R64 makes and the port's generator does not.
MISSING = "the port's own generator is never asked for it"


class OwnDraws(MessageHandler):
    """Counts the port's own draws of a few training steps, and masks that are drawn one after another.

    Args:
        reference: files that the port is compared with.
    """

    def __init__(self, reference: ReferenceFiles) -> None:
        self.reference = reference
        self._counter = DrawCounter()

    @handles("draws step")
    def _begin_step(self, message: Message, content: None) -> None:
        """Begin the counts of the next training step.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self._counter.begin_step()

    @handles("sequence")
    def _count_sequence(self, message: Message, content: None) -> None:
        """Count dropout masks of rate 1/2 that were drawn one after another, bool (masks, cells).

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self._counter.sequence(message.value())

    @handles("mask")
    def _count_mask(self, message: Message, draw: OwnDraw) -> None:
        """Count a dropout mask, bool, True for a kept element.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            draw: shape and rate of the draw.
        """
        assert draw.rate is not None
        self._counter.mask(message.name, draw.rate, draw.shape, message.value())

    @handles("rotation")
    def _count_rotation(self, message: Message, draw: OwnDraw) -> None:
        """Count the standard normal numbers of a random rotation.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            draw: shape and rate of the draw.
        """
        self._counter.rotation(message.name, draw.shape, message.value(), is_seeded=draw.is_seeded)

    def stats(self) -> GeneratorStats:
        """Return the counts by draw. A draw that only R64 makes has the problem :data:`MISSING`."""
        stats, draws = self._counter.stats, self.reference.draws[TRAINING]
        for name in draws:
            if TensorName.parse(name).kind in DRAW_KINDS and name not in stats.masks and name not in stats.rotations:
                stats.masks[name] = MaskStats(list(draws.shape(name)), problems=[MISSING])
        return stats
