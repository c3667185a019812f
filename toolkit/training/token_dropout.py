"""Tokens of training texts replaced by the pad token, by the seed, the epoch and the example alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from toolkit.training.sampler import EpochPermutation


class TokenDropout(paddle.io.Dataset):
    """Training examples with a share of their tokens replaced, others in each epoch (Iyyer et al. 2015, section 3.1).

    Neither a text's first token, which Reformer's head reads, nor its last, which CTRL's reads, is replaced. What is
    replaced is still attended to. The draws do not depend on where a run resumed, or on how many processes share it.

    Args:
        examples: with ``input_ids`` and ``attention_mask``, [T] each.
        sampler: with the run's seed and the epoch.
    """

    def __init__(self, examples: Any, share: float, token: int, sampler: EpochPermutation) -> None:
        self.examples, self.share, self.token, self.sampler = examples, share, token, sampler

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        row = dict(self.examples[index])
        inner = np.flatnonzero(row["attention_mask"])[1:-1]
        seed, epoch = self.sampler.seed, self.sampler.epoch
        draws = np.random.RandomState([seed % 2**32, seed // 2**32, epoch, index]).random_sample(len(inner))
        tokens = np.array(row["input_ids"])
        tokens[inner[draws < self.share]] = self.token
        return {**row, "input_ids": tokens}
