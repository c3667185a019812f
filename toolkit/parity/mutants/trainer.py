"""Faults of the training loop around a step: how it weighs micro-batches, clips, schedules the rate, and what it makes
of the recipe. They are the same for every model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from toolkit.parity.mutants.fault import Mutant, around


def _arguments(port, **changes: Any):
    """Give the Trainer other arguments than the recipe's."""
    plain = port.trainer._training_arguments

    def changed(recipe, folder, schedule):
        arguments = plain(recipe, folder, schedule)
        for name, value in changes.items():
            setattr(arguments, name, value(getattr(arguments, name)) if callable(value) else value)
        return arguments

    return [(port.trainer, "_training_arguments", changed)]


def _schedule(port, change: Callable):
    """Change the schedule of the rate once it is made."""

    def create(plain, self, num_training_steps):
        scheduler = plain(self, num_training_steps)
        change(scheduler)
        return scheduler

    return around(port.trainer.Finetuner, "create_scheduler", create)


def _late(scheduler) -> None:
    """Give each update the rate of the one before it."""
    plain = scheduler.lr_lambda
    scheduler.lr_lambda = lambda step: plain(max(0, step - 1))


def _floored(scheduler) -> None:
    """Let the rate never fall below a half."""
    plain = scheduler.lr_lambda
    scheduler.lr_lambda = lambda step: plain(step) if step < 4 else max(0.5, plain(step))


def _weights(port, change: Callable):
    return [(port.trainer, "loss_weights", change)]


def _whole_micro_batches(port):
    """Leave out the last micro-batch if it is short."""
    plain = port.trainer.split_batch

    def split(batch, size):
        whole = [part for part in plain(batch, size) if len(next(iter(part.values()))) == size]
        return whole or plain(batch, size)

    return [(port.trainer, "split_batch", split)]


def _first_ones(port, key: str):
    """Give each micro-batch the first one's tensor of that name."""
    plain = port.trainer.split_batch

    def split(batch, size):
        parts = plain(batch, size)
        return [{**part, key: parts[0][key][: len(part[key])]} for part in parts]

    return [(port.trainer, "split_batch", split)]


def _third_update_doubled(port):
    """Make AdamW's third step twice."""
    counts: dict[int, int] = {}

    def step(plain, self):
        counts[id(self)] = counts.get(id(self), 0) + 1
        plain(self)
        if counts[id(self)] == 3:
            plain(self)

    return around(port.paddle.optimizer.AdamW, "step", step)


_rate = partial(Mutant, expected="learning_rate")
_updates = partial(Mutant, expected="updated:")

TRAINER: tuple[Mutant, ...] = (
    _updates(
        "trainer-no-clipping",
        "the Trainer makes its optimizer without clipping",
        apply=lambda p: _arguments(p, max_grad_norm=0.0),
    ),
    _updates(
        "trainer-decay-lost",
        "the recipe's weight decay does not reach the Trainer",
        apply=lambda p: _arguments(p, weight_decay=0.0),
    ),
    _updates(
        "trainer-beta2-default",
        "Adam's beta2 is the Trainer's own and not the recipe's",
        apply=lambda p: _arguments(p, adam_beta2=lambda given: 0.999 if given != 0.999 else 0.98),
    ),
    _rate("trainer-warmup-late", "the warm-up begins a step late", apply=lambda p: _schedule(p, _late)),
    _rate("trainer-warmup-missing", "no warm-up", apply=lambda p: _arguments(p, warmup_steps=0)),
    _rate(
        "trainer-warmup-floored",
        "the warm-up is rounded down to whole updates",
        apply=lambda p: _arguments(p, warmup_steps=lambda steps: steps - 1),
    ),
    _rate("trainer-rate-floor", "the rate does not fall to 0 at the end", apply=lambda p: _schedule(p, _floored)),
    _rate(
        "trainer-schedule-other",
        "the rate falls as a cosine, not in a line",
        apply=lambda p: _arguments(p, lr_scheduler_type="cosine"),
    ),
    _updates(
        "trainer-micro-batches-alike",
        "micro-batches count alike, however many labels they have",
        apply=lambda p: _weights(p, lambda terms: [1.0 / len(terms)] * len(terms)),
    ),
    Mutant("trainer-last-micro-batch", "a short last micro-batch is left out", "trained:", _whole_micro_batches),
    Mutant(
        "trainer-first-mask",
        "each micro-batch is given the first one's attention mask",
        "trained:attention_mask",
        lambda p: _first_ones(p, "attention_mask"),
    ),
    Mutant("trainer-third-update", "the third update is made twice", "#3", _third_update_doubled),
)
