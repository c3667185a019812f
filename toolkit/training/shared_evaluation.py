"""Evaluate in several processes, with the numbers of one: they share whole batches, none of them twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from safetensors.numpy import load, save

from toolkit.files.digest import digest
from toolkit.machine.interruption import Interrupted
from toolkit.training import ranks

#: Mean loss of a batch, and what the task keeps of its examples.
Found = tuple[np.ndarray, list[np.ndarray]]


class EveryNth(paddle.io.BatchSampler):
    """Every ``step``-th batch of a data set in the ``order`` of its examples, from the batch ``first`` on."""

    def __init__(self, order: Sequence[int] | np.ndarray, batch_size: int, first: int = 0, step: int = 1) -> None:
        super().__init__(dataset=range(len(order)), batch_size=batch_size)
        self._batches = range(first, math.ceil(len(order) / batch_size), step)
        self._order = order

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches:
            start = batch * self.batch_size
            yield [int(index) for index in self._order[start : start + self.batch_size]]

    def __len__(self) -> int:
        return len(self._batches)


def longest_first(token_counts: np.ndarray | None, examples: int) -> np.ndarray:
    """Order examples by length, so that a batch needs little padding; without counts, keep their own order. The longest
    come first: a batch too long for the memory fails at once."""
    return np.arange(examples) if token_counts is None else np.argsort(-token_counts, kind="stable")


def in_own_order(parts: Sequence[np.ndarray], order: np.ndarray) -> tuple[np.ndarray, ...]:
    """Put arrays (N, ...) of examples computed in ``order`` back into the data set's order."""
    own = np.argsort(order)
    return tuple(part[own] for part in parts)


def seed_of_batch(seed: int, batch: int) -> int:
    """Seed of the generators for a batch of an evaluation."""
    return seed if batch == 0 else int(digest("evaluation", seed, batch)[:8], 16)


def evaluate_shared(
    batches: Iterable[Any],
    step: Callable[[Any], tuple[Any, Sequence[Any], Any]],
    done: Callable[[], object],
    shared: bool,
    leave: Callable[[], bool],
) -> tuple[float, tuple[np.ndarray, ...]]:
    """Compute the batches of this process.

    Args:
        batches: those of :class:`EveryNth`.
        step: gives the mean loss of a batch, and what is kept of its examples, [B, ...] each.
        done: is called after each batch.
        shared: whether other processes compute the rest; else these are all.
        leave: whether this process was asked to stop; all stop when one was.

    Returns:
        The mean loss over all examples of all processes, and what was kept of them, [N, ...] each.

    Raises:
        Interrupted: in all processes.
    """
    here: list[Found] = []
    for batch in batches:
        if leave():
            break
        loss, kept, _ = step(batch)
        wide = "float64" if loss.dtype == paddle.float64 else "float32"
        here.append((loss.astype(wide).numpy(), [part.numpy() for part in kept]))
        done()
    if shared and any(ranks.total([leave()])):
        raise Interrupted
    found = _in_order(here) if shared else here
    kept = tuple(np.concatenate(parts) for parts in zip(*(kept for _, kept in found), strict=True))
    # Each example counts with its batch's loss, as in PaddleNLP's loop.
    losses = np.concatenate([np.tile(loss.reshape(-1), len(kept[0])) for loss, kept in found])
    return float(losses.mean()), kept


def _in_order(here: list[Found]) -> list[Found]:
    """The batches of all processes, in their order."""
    texts = ranks.gather(save({f"{batch} {part}": np.ascontiguousarray(value) for batch, part, value in _parts(here)}))
    everywhere = [_batches(load(text)) for text in texts]
    return [found[turn] for turn in range(len(everywhere[0])) for found in everywhere if turn < len(found)]


def _parts(found: list[Found]) -> Iterator[tuple[int, int, np.ndarray]]:
    """Batch, part, value: the loss is part 0."""
    for batch, (loss, kept) in enumerate(found):
        for part, value in enumerate([loss, *kept]):
            yield batch, part, value


def _batches(tensors: dict[str, np.ndarray]) -> list[Found]:
    """Inverse of :func:`_parts`."""
    parts: dict[int, dict[int, np.ndarray]] = {}
    for name, value in tensors.items():
        batch, part = map(int, name.split())
        parts.setdefault(batch, {})[part] = value
    return [(parts[batch][0], [parts[batch][part] for part in sorted(parts[batch])[1:]]) for batch in sorted(parts)]
