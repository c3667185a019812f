"""The port's own dropout masks and rotations, watched as training draws them (verdict 7).

All else is compared with recorded draws, which say nothing of the port's own generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paddle

from models import randomness
from toolkit import runtime
from toolkit.parity.candidate.rng_stats import DrawCounter
from toolkit.parity.candidate.step import make_step, step_class, watch
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import GeneratorStats
from toolkit.parity.measure.naming import ModuleStack

#: Training steps that are watched; more, up to ``MOST_STEPS``, where they draw fewer than ``ENOUGH`` cells: with these
#: a rate of 0.1 is known to within 4%.
STEPS, MOST_STEPS, ENOUGH = 3, 12, 2**19


class WatchedSource:
    """A source for :mod:`models.randomness` that hands everything on to another, and counts the draws.

    Args:
        own: the source that draws.

    Attributes:
        stack: names the draws by the module that is running.
        counting: off while a backward draws again what a forward has drawn.
    """

    def __init__(self, own: randomness.Source, counter: DrawCounter) -> None:
        self.own = own
        self.stack = ModuleStack()
        self.counter = counter
        self.counting = True

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        kept = self.own.kept(p, shape)
        if self.counting:
            self.counter.mask(self.stack.draw("dropout"), p, shape, kept.numpy())
        return kept

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        drawn = self.own.normal(shape, dtype, seed)
        if self.counting:
            self.counter.rotation(self.stack.draw("normal"), shape, seed is not None, drawn.numpy())
        return drawn

    def state(self) -> object:
        return self.own.state()

    def restore(self, state: object) -> None:
        self.own.restore(state)


def measure(job: Job, folder: Path) -> GeneratorStats:
    """What the port draws by itself in a few training steps in float32, layers being computed again as the job's family
    can."""
    step = make_step(job, folder, "float32", step_class(job.model).again)
    return watched_steps(step.model, step.batch, job.seed)


def watched_steps(model: paddle.nn.Layer, batch: Mapping[str, Any], seed: int) -> GeneratorStats:
    """:func:`measure` of a model in training mode, from Paddle's generator seeded with ``seed``.

    The first step has its backward, after which the generator must be where the forward left it.
    """
    runtime.seed_everything(seed)
    counter = DrawCounter()
    source = WatchedSource(randomness.Generator(), counter)
    with randomness.use(source):
        for number in range(MOST_STEPS):
            if number >= STEPS and (counter.cells >= ENOUGH or not (counter.stats.masks or counter.stats.rotations)):
                break
            counter.begin_step()
            source.stack = ModuleStack()  # a new one, as names count the calls of a module
            with watch(model, source.stack, lambda *_: None), paddle.set_grad_enabled(number == 0):
                loss = model(**batch).loss
                if number == 0:
                    source.counting = False
                    loss.backward()
                    source.counting = True
                    model.clear_gradients()
    return counter.stats
