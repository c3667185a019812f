"""Set how long a run is and when it evaluates, and keep which evaluation was the best so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from toolkit.recipe.recipe import Recipe


def examples_of_step(recipe: Recipe, processes: int = 1) -> int:
    """Return the number of training examples of one optimizer step, over all processes."""
    return recipe.train.batch_size * recipe.train.gradient_accumulation_steps * processes


@dataclass(frozen=True)
class Schedule:
    """The length of a run and the distance of its evaluations, in optimizer steps."""

    steps_per_epoch: int
    max_steps: int
    eval_steps: int

    @classmethod
    def of(cls, recipe: Recipe, examples: int, processes: int = 1) -> Schedule:
        """Return the schedule of a recipe, which has at least one step.

        Args:
            recipe: recipe with the train section.
            examples: number of training examples.
            processes: number of data-parallel processes.
        """
        train = recipe.train
        steps_per_epoch = math.ceil(examples / examples_of_step(recipe, processes))
        max_steps = train.max_steps or max(1, round((train.epochs or 0) * steps_per_epoch))
        return cls(steps_per_epoch, max_steps, train.eval_steps or steps_per_epoch)


@dataclass
class Best:
    """The best evaluation so far, and the number of evaluations since. It is part of every checkpoint."""

    best_step: int | None = None
    best_value: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations_since: int = 0
    stopped: bool = False

    def better(self, value: float, *, lower_is_better: bool) -> bool:
        """Return whether a finite value is better than the best so far, or is the first. NaN and infinity never are."""
        if not math.isfinite(value):
            return False
        if self.best_value is None:
            return True
        return value < self.best_value if lower_is_better else value > self.best_value
