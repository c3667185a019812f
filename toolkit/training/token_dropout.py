"""Replace tokens of training texts by the pad token, drawn from the seed, the epoch and the example only."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from toolkit.training.sampler import EpochPermutation


class TokenDropout(paddle.io.Dataset):
    """Training examples with a share of their tokens replaced, different tokens in each epoch.

    The method is word dropout (Iyyer et al. 2015, section 3.1). The first token of a text, which Reformer's head reads,
    and the last, which CTRL's head reads, are never replaced. Replaced tokens are still attended to. The draws do not
    depend on the number of processes, or on whether the run was resumed.

    Args:
        examples: data set with ``input_ids`` and ``attention_mask``, (T,) each.
        share: probability of replacing a token, in [0, 1].
        token: id of the token that replaces others.
        sampler: sampler of the run, which has its seed and the current epoch.
    """

    def __init__(self, examples: Any, share: float, token: int, sampler: EpochPermutation) -> None:
        self.examples, self.share, self.token, self.sampler = examples, share, token, sampler

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        example = dict(self.examples[index])
        inner_positions = np.flatnonzero(example["attention_mask"])[1:-1]
        seed, epoch = self.sampler.seed, self.sampler.epoch
        draws = np.random.RandomState([seed % 2**32, seed // 2**32, epoch, index]).random_sample(len(inner_positions))
        input_ids = np.array(example["input_ids"])
        input_ids[inner_positions[draws < self.share]] = self.token
        return {**example, "input_ids": input_ids}
