"""Choose the training examples of each step: a permutation for each epoch, from the seed and the epoch only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import paddle


class EpochPermutation(paddle.io.DistributedBatchSampler):
    """Batches of indices, in a new order each epoch, that can start anywhere in an epoch.

    PaddleNLP's Trainer redraws the interrupted epoch's permutation from a generator when it resumes, so a resumed run
    sees some examples twice and others not at all. Here the order of an epoch depends on no state except its number. It
    comes from NumPy's legacy generator, whose stream is frozen (NEP 19), so a run can resume under another NumPy.

    The base class is `DistributedBatchSampler` because the Trainer's loop sets the epoch of such samplers
    (`set_epoch`). That class repeats a few examples so that all processes have equally many. Here the processes share
    the batch that a single process would have: no example is seen by two processes in the same epoch.

    Args:
        examples: number of training examples.
        batch_size: examples of one optimizer step of all processes together, accumulation included. The last batch of
            an epoch holds the remaining examples.
        seed: seed of the run.
        replicas: number of data-parallel processes. Each takes every `replicas`-th example of a batch.
        rank: rank of this process.
        on_epoch: called with the number of each epoch before its first batch.
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        seed: int,
        replicas: int = 1,
        rank: int = 0,
        on_epoch: Callable[[int], object] | None = None,
    ) -> None:
        super().__init__(range(examples), batch_size, num_replicas=replicas, rank=rank, shuffle=True)
        self.seed = seed
        self.on_epoch = on_epoch
        self._start = (0, 0)

    def start_at(self, epoch: int, batch_index: int) -> None:
        """Start one epoch at a later batch. All other epochs start at their first batch."""
        self._start = (epoch, batch_index)

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of all examples in an epoch, over all processes: (examples,) int64."""
        generator = np.random.RandomState([self.seed % 2**32, self.seed // 2**32, epoch])
        return generator.permutation(len(self.dataset))

    def has_examples(self, batch_index: int) -> bool:
        """Return whether this process has a part of a batch.

        The last batch of an epoch may have fewer examples than there are processes.
        """
        return self.local_rank < min(self.batch_size, len(self.dataset) - batch_index * self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.order(self.epoch)
        if self.on_epoch is not None:
            self.on_epoch(self.epoch)
        first_batch = self._start[1] if self.epoch == self._start[0] else 0
        for batch in range(first_batch, len(self)):
            batch_indices = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            # A process without a part gets one example with weight 0, because a loader cannot have an empty batch.
            yield (
                batch_indices[self.local_rank :: self.nranks] if self.has_examples(batch) else batch_indices[:1]
            ).tolist()

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return -(-len(self.dataset) // self.batch_size)
