"""The port's own dropout masks and random rotations, recorded as training draws them (verdict 7, randomness).

The other comparisons replay R64's draws, which does not test the port's own random number generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import paddle

from models.operations import randomness
from toolkit.machine import runtime
from toolkit.parity.candidate.family_step import ported_class
from toolkit.parity.candidate.step import watch
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.messages import OwnDraw
from toolkit.parity.job.job import Job
from toolkit.parity.measure.naming import ModuleStack

#: Number of observed training steps. If these draw fewer than ``ENOUGH_CELLS`` mask elements, further steps follow, up
#: to ``MAX_STEPS`` in all. So many elements determine a dropout rate of 0.1 to within 4%.
STEPS, MAX_STEPS, ENOUGH_CELLS = 3, 12, 2**19
#: Pairs of a number of masks, which are drawn one after another, and the number of elements of each mask. In the first
#: pair all of the many masks must differ. In the second, several threads draw each long mask, and no two elements may
#: be equal in all masks.
SEQUENCES = ((2**11, 2**8), (2**7, 2**15 + 1))


class DrawReceiver(Protocol):
    """Interface of an object that receives the draws of several training steps."""

    def begin_step(self) -> None:
        """Begin the next training step."""

    def mask(self, name: str, rate: float, shape: Sequence[int], keep_mask: np.ndarray) -> None:
        """Handle a dropout mask.

        Args:
            name: name of the draw, such as ``dropout:encoder.layers.0``.
            rate: requested share of dropped elements.
            shape: requested shape.
            keep_mask: the mask, bool, True for a kept element.
        """

    def rotation(self, name: str, shape: Sequence[int], numbers: np.ndarray, *, is_seeded: bool) -> None:
        """Handle standard normal numbers, which Reformer's hash uses as random rotations.

        Args:
            name: name of the draw, such as ``normal:encoder.layers.0.attention``.
            shape: requested shape.
            is_seeded: whether the configuration has a seed, so that the numbers are the same each time.
            numbers: the numbers that were drawn.
        """

    def sequence(self, masks: np.ndarray) -> None:
        """Handle dropout masks of rate 1/2 that were drawn one after another.

        Args:
            masks: bool (masks, cells), True for a dropped cell.
        """


@dataclass
class DrawSender:
    """A :class:`DrawReceiver` that sends every draw to the comparator."""

    sender: Sender

    def begin_step(self) -> None:
        """Announce the next training step to the comparator."""
        self.sender.send_json("draws step", None)

    def mask(self, name: str, rate: float, shape: Sequence[int], keep_mask: np.ndarray) -> None:
        """Send a dropout mask with its requested rate and shape; see :meth:`DrawReceiver.mask`."""
        self.sender.send_array("mask", name, keep_mask, OwnDraw([int(size) for size in shape], float(rate)))

    def rotation(self, name: str, shape: Sequence[int], numbers: np.ndarray, *, is_seeded: bool) -> None:
        """Send normal numbers with their requested shape; see :meth:`DrawReceiver.rotation`."""
        self.sender.send_array("rotation", name, numbers, OwnDraw([int(size) for size in shape], is_seeded=is_seeded))

    def sequence(self, masks: np.ndarray) -> None:
        """Send dropout masks of rate 1/2, bool (masks, cells), that were drawn one after another."""
        self.sender.send_array("sequence", "", masks)


class WatchedSource:
    """Source of random draws that takes them from another source and reports each to a receiver.

    It can replace any source of :mod:`models.operations.randomness`.

    Args:
        own: source that draws the numbers.
        receiver: object that the draws are reported to.

    Attributes:
        stack: names each draw after the module that is running.
        counting: whether draws are reported; False while a backward repeats the draws of its forward.
        draws: number of reported draws.
        cells: number of elements of all reported masks.
    """

    def __init__(self, own: randomness.Source, receiver: DrawReceiver) -> None:
        self.own = own
        self.stack = ModuleStack()
        self.receiver = receiver
        self.counting = True
        self.draws = self.cells = 0

    def draw_mask(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        """Draw a dropout mask, which drops each element with probability ``p``, and report it."""
        keep_mask = self.own.draw_mask(p, shape)
        if self.counting:
            self.draws, self.cells = self.draws + 1, self.cells + keep_mask.size
            self.receiver.mask(self.stack.next_name("dropout"), p, shape, keep_mask.numpy())
        return keep_mask

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        """Draw standard normal numbers, with a seed the same numbers each time, and report them."""
        numbers = self.own.normal(shape, dtype, seed)
        if self.counting:
            self.draws += 1
            self.receiver.rotation(self.stack.next_name("normal"), shape, numbers.numpy(), is_seeded=seed is not None)
        return numbers

    def state(self) -> object:
        """Return the state of the other source."""
        return self.own.state()

    def restore(self, state: object) -> None:
        """Restore an earlier state of the other source.

        Args:
            state: result of :meth:`state`.
        """
        self.own.restore(state)


def send_draws(job: Job, folder: Path, sender: Sender) -> None:
    """Send the port's own draws in a few float32 training steps.

    The steps recompute layers in the backward if the family can.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
    """
    kind = ported_class(job.model)
    step = kind(job, folder, "float32", kind.recomputing_backward)
    watched_steps(step.model, step.batch, job.seed, DrawSender(sender))


def watched_steps(model: paddle.nn.Layer, batch: Mapping[str, Any], seed: int, receiver: DrawReceiver) -> None:
    """Run a few training steps of a model, and report its draws to a receiver.

    Only the first step has a backward. After it, the generator must have the state that the forward left.

    Args:
        model: the model, which is in training mode.
        batch: the model's inputs by name.
        seed: seed of Paddle's generator before the first step.
        receiver: object that the draws are reported to.
    """
    runtime.seed_everything(seed)
    source = WatchedSource(randomness.Generator(), receiver)
    with randomness.use_rng(source):
        for number in range(MAX_STEPS):
            if number >= STEPS and (source.cells >= ENOUGH_CELLS or not source.draws):
                break
            receiver.begin_step()
            source.stack = ModuleStack()  # a new stack, since names count the calls of a module
            with watch(model, source.stack, lambda *_: None), paddle.set_grad_enabled(number == 0):
                loss = model(**batch).loss
                if number == 0:
                    source.counting = False
                    loss.backward()
                    source.counting = True
                    model.clear_gradients()
    if source.cells:
        for count, cells in SEQUENCES:
            receiver.sequence(np.stack([~source.own.draw_mask(0.5, [cells]).numpy() for _ in range(count)]))
