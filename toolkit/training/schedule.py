"""How long a run is, when it evaluates, and which evaluation was the best so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from toolkit.recipe.recipe import Recipe


def examples_of_step(recipe: Recipe, processes: int = 1) -> int:
    """The training examples of one optimizer step, of all processes together."""
    return recipe.train.batch_size * recipe.train.gradient_accumulation_steps * processes


@dataclass(frozen=True)
class Schedule:
    """A run's length, in optimizer steps."""

    steps_per_epoch: int
    max_steps: int
    eval_steps: int

    @classmethod
    def of(cls, recipe: Recipe, examples: int, processes: int = 1) -> Schedule:
        """The schedule of a recipe over this many training examples, with this many processes; at least one step."""
        train = recipe.train
        per_epoch = math.ceil(examples / examples_of_step(recipe, processes))
        steps = train.max_steps or max(1, round((train.epochs or 0) * per_epoch))
        return cls(per_epoch, steps, train.eval_steps or per_epoch)


@dataclass
class Best:
    """The best evaluation so far, and how long ago that was. Part of every checkpoint."""

    best_step: int | None = None
    best_value: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    evaluations_since: int = 0
    stopped: bool = False

    def better(self, value: float, lower_is_better: bool) -> bool:
        """Whether a value beats the best; the first one does. What is not finite never does."""
        if not math.isfinite(value):
            return False
        if self.best_value is None:
            return True
        return value < self.best_value if lower_is_better else value > self.best_value
