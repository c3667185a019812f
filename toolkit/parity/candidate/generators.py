"""The port's own dropout masks and rotations, watched as training draws them (verdict 7).

The other comparisons use recorded draws, which do not test the port's own generator.
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
from toolkit.parity.candidate.ported import ported_class
from toolkit.parity.candidate.step import watch
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.job import Job
from toolkit.parity.job.messages import OwnDraw
from toolkit.parity.measure.naming import ModuleStack

#: Number of observed training steps; at most ``MAX_STEPS`` if they draw fewer than ``ENOUGH_CELLS`` cells, which
#: determine a rate of 0.1 to within 4%.
STEPS, MAX_STEPS, ENOUGH_CELLS = 3, 12, 2**19
#: Numbers of consecutively drawn masks and of their cells. Many masks must all differ; in long masks, which several
#: threads draw, all cells must differ.
SEQUENCES = ((2**11, 2**8), (2**7, 2**15 + 1))


class DrawReceiver(Protocol):
    """Receives the draws of several training steps."""

    def begin_step(self) -> None:
        """Begin the next step."""

    def mask(self, name: str, rate: float, shape: Sequence[int], keep_mask: np.ndarray) -> None:
        """Handle a dropout mask (bool: which cells are kept), with the requested rate and shape."""

    def rotation(self, name: str, shape: Sequence[int], is_seeded: bool, numbers: np.ndarray) -> None:
        """Handle normal numbers; seeded numbers are the same each time."""

    def sequence(self, masks: np.ndarray) -> None:
        """Handle consecutive masks of rate 1/2: bool (masks, cells), True for a dropped cell."""


@dataclass
class DrawSender:
    """Sends every draw to the comparator."""

    sender: Sender

    def begin_step(self) -> None:
        self.sender.send_json("draws step", None)

    def mask(self, name: str, rate: float, shape: Sequence[int], keep_mask: np.ndarray) -> None:
        self.sender.send_array("mask", name, keep_mask, OwnDraw([int(size) for size in shape], float(rate)))

    def rotation(self, name: str, shape: Sequence[int], is_seeded: bool, numbers: np.ndarray) -> None:
        self.sender.send_array("rotation", name, numbers, OwnDraw([int(size) for size in shape], is_seeded=is_seeded))

    def sequence(self, masks: np.ndarray) -> None:
        self.sender.send_array("sequence", "", masks)


class WatchedSource:
    """A source for :mod:`models.operations.randomness` that delegates to another and reports the draws.

    Attributes:
        stack: names the draws by the module that is running.
        counting: False while a backward repeats the draws of its forward.
        draws, cells: number of draws, and of cells of their masks.
    """

    def __init__(self, own: randomness.Source, receiver: DrawReceiver) -> None:
        self.own = own
        self.stack = ModuleStack()
        self.receiver = receiver
        self.counting = True
        self.draws = self.cells = 0

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        keep_mask = self.own.kept(p, shape)
        if self.counting:
            self.draws, self.cells = self.draws + 1, self.cells + keep_mask.size
            self.receiver.mask(self.stack.next_name("dropout"), p, shape, keep_mask.numpy())
        return keep_mask

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        numbers = self.own.normal(shape, dtype, seed)
        if self.counting:
            self.draws += 1
            self.receiver.rotation(self.stack.next_name("normal"), shape, seed is not None, numbers.numpy())
        return numbers

    def state(self) -> object:
        return self.own.state()

    def restore(self, state: object) -> None:
        self.own.restore(state)


def send_draws(job: Job, folder: Path, sender: Sender) -> None:
    """Send the draws of a few float32 training steps, with layers recomputed if the family can; then generate."""
    kind = ported_class(job.model)
    step = kind(job, folder, "float32", kind.again)
    watched_steps(step.model, step.batch, job.seed, DrawSender(sender))
    step.model.eval()
    with paddle.no_grad():
        step.generate()


def watched_steps(model: paddle.nn.Layer, batch: Mapping[str, Any], seed: int, receiver: DrawReceiver) -> None:
    """Report the draws of a model in training mode, with Paddle's generator seeded with ``seed``.

    Only the first step runs its backward, after which the generator must be where the forward left it.
    """
    runtime.seed_everything(seed)
    source = WatchedSource(randomness.Generator(), receiver)
    with randomness.use_rng(source):
        for number in range(MAX_STEPS):
            if number >= STEPS and (source.cells >= ENOUGH_CELLS or not source.draws):
                break
            receiver.begin_step()
            source.stack = ModuleStack()  # a new one, as names count the calls of a module
            with watch(model, source.stack, lambda *_: None), paddle.set_grad_enabled(number == 0):
                loss = model(**batch).loss
                if number == 0:
                    source.counting = False
                    loss.backward()
                    source.counting = True
                    model.clear_gradients()
    if source.cells:
        for count, cells in SEQUENCES:
            receiver.sequence(np.stack([~source.own.kept(0.5, [cells]).numpy() for _ in range(count)]))
