"""Which training examples a step sees: a permutation per epoch that is a function of the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import paddle


class EpochPermutation(paddle.io.DistributedBatchSampler):
    """Batches of indices, in a new order each epoch, that can start anywhere in an epoch.

    PaddleNLP's Trainer redraws the interrupted epoch's permutation from a generator when it resumes, so a resumed run
    sees some examples twice and others not at all. Here the order of an epoch needs no state but its number. It comes
    from NumPy's legacy generator, whose stream is frozen (NEP 19): a run resumes under another NumPy too.

    It is a `DistributedBatchSampler` because the Trainer's loop sets their epoch (`set_epoch`). That class repeats
    a few examples so that all processes have equally many. Here the processes share the batch that one would have: none
    sees an example that another has seen in this epoch.

    Args:
        batch_size: examples of one optimizer step of all processes together, accumulation included. The last batch of
            an epoch holds what is left.
        replicas: data-parallel processes. Each takes every `replicas`-th example of a batch.
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

    def start_at(self, epoch: int, batch: int) -> None:
        """Let one epoch begin at a later batch; the others are whole."""
        self._start = (epoch, batch)

    def order(self, epoch: int) -> np.ndarray:
        """The examples of an epoch, of all processes, in order: [examples] int64."""
        generator = np.random.RandomState([self.seed % 2**32, self.seed // 2**32, epoch])
        return generator.permutation(len(self.dataset))

    def has_examples(self, batch: int) -> bool:
        """Whether this process has a part of a batch: the last may hold fewer examples than processes."""
        return self.local_rank < min(self.batch_size, len(self.dataset) - batch * self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.order(self.epoch)
        if self.on_epoch is not None:
            self.on_epoch(self.epoch)
        first = self._start[1] if self.epoch == self._start[0] else 0
        for batch in range(first, len(self)):
            whole = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            # A process without a part is given one example, which does not count: a loader knows no empty batch.
            yield (whole[self.local_rank :: self.nranks] if self.has_examples(batch) else whole[:1]).tolist()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return -(-len(self.dataset) // self.batch_size)
