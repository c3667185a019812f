"""Evaluate in several processes, with the same results as in one: the processes share whole batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from safetensors.numpy import load, save

from toolkit.files.digest import digest_parts
from toolkit.machine.interruption import SignalInterrupt
from toolkit.training import ranks

#: Mean loss of a batch, and the outputs that the task keeps of its examples.
BatchOutput = tuple[np.ndarray, list[np.ndarray]]


class EveryNth(paddle.io.BatchSampler):
    """Every `step`-th batch of a data set, starting with batch `first`; `example_order` lists the examples."""

    def __init__(
        self, example_order: Sequence[int] | np.ndarray, batch_size: int, first: int = 0, step: int = 1
    ) -> None:
        super().__init__(dataset=range(len(example_order)), batch_size=batch_size)
        self._batches = range(first, math.ceil(len(example_order) / batch_size), step)
        self._order = example_order

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches:
            start = batch * self.batch_size
            yield [int(index) for index in self._order[start : start + self.batch_size]]

    def __len__(self) -> int:
        return len(self._batches)


def longest_first(token_counts: np.ndarray | None, examples: int) -> np.ndarray:
    """Return the order of the examples from the longest to the shortest, or their own order without counts.

    Batches of similar lengths need little padding. A batch that is too long for the memory fails at once, because the
    longest come first.

    Args:
        token_counts: number of tokens of each example, (examples,), or None.
        examples: number of examples.
    """
    return np.arange(examples) if token_counts is None else np.argsort(-token_counts, kind="stable")


def in_own_order(arrays: Sequence[np.ndarray], order: np.ndarray) -> tuple[np.ndarray, ...]:
    """Put arrays (N, ...) of examples that were computed in `order` back into the data set's order."""
    inverse_order = np.argsort(order)
    return tuple(array[inverse_order] for array in arrays)


def seed_of_batch(seed: int, batch_index: int) -> int:
    """Return the seed of the generators for a batch of an evaluation."""
    return seed if batch_index == 0 else int(digest_parts("evaluation", seed, batch_index)[:8], 16)


def evaluate_shared(
    batches: Iterable[Any],
    evaluate_batch: Callable[[Any], tuple[Any, Sequence[Any], Any]],
    on_batch: Callable[[], object],
    should_stop: Callable[[], bool],
    *,
    is_shared: bool,
) -> tuple[float, tuple[np.ndarray, ...]]:
    """Evaluate the batches of this process, and combine the results of all processes.

    Args:
        batches: batches of this process, from :class:`EveryNth`.
        evaluate_batch: returns the mean loss of a batch, the outputs kept of its examples, (B, ...) each, and a third
            value that is ignored.
        on_batch: called after each batch.
        is_shared: whether other processes evaluate the remaining batches; otherwise `batches` has every batch.
        should_stop: returns whether this process was asked to stop. All processes stop when one was asked.

    Returns:
        The mean loss over all examples of all processes, and the outputs kept of these examples, (N, ...) each.

    Raises:
        SignalInterrupt: one of the processes was asked to stop; raised in every process.
    """
    own_batches: list[BatchOutput] = []
    for batch in batches:
        if should_stop():
            break
        loss, kept_outputs, _ = evaluate_batch(batch)
        wide_dtype = "float64" if loss.dtype == paddle.float64 else "float32"
        own_batches.append((loss.astype(wide_dtype).numpy(), [part.numpy() for part in kept_outputs]))
        on_batch()
    if is_shared and any(ranks.total([should_stop()])):
        raise SignalInterrupt
    all_batches = _in_order(own_batches) if is_shared else own_batches
    kept_outputs = tuple(
        np.concatenate(parts) for parts in zip(*(kept_outputs for _, kept_outputs in all_batches), strict=True)
    )
    # Weight each batch by its number of examples, as PaddleNLP's loop does.
    losses = np.concatenate([np.tile(loss.reshape(-1), len(kept_outputs[0])) for loss, kept_outputs in all_batches])
    return float(losses.mean()), kept_outputs


def _in_order(own_batches: list[BatchOutput]) -> list[BatchOutput]:
    """Return the batches of all processes, in the order of the data set."""
    texts = ranks.gather(
        save(
            {f"{batch} {part}": np.ascontiguousarray(value) for batch, part, value in _tensors_of_batches(own_batches)}
        )
    )
    batches_by_process = [_batches_of_tensors(load(text)) for text in texts]
    return [
        batches[index]
        for index in range(len(batches_by_process[0]))
        for batches in batches_by_process
        if index < len(batches)
    ]


def _tensors_of_batches(batches: list[BatchOutput]) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield the batch's index, the part's index and the array of each part. Part 0 is the loss."""
    for batch, (loss, kept_outputs) in enumerate(batches):
        for part, value in enumerate([loss, *kept_outputs]):
            yield batch, part, value


def _batches_of_tensors(arrays: dict[str, np.ndarray]) -> list[BatchOutput]:
    """Rebuild batches from the tensors `BATCH PART` that :func:`_in_order` sends."""
    parts_by_batch: dict[int, dict[int, np.ndarray]] = {}
    for name, value in arrays.items():
        batch, part = map(int, name.split())
        parts_by_batch.setdefault(batch, {})[part] = value
    return [
        (parts_by_batch[batch][0], [parts_by_batch[batch][part] for part in sorted(parts_by_batch[batch])[1:]])
        for batch in sorted(parts_by_batch)
    ]
