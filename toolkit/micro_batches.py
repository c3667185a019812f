"""An accumulated batch in parts that fit into memory, weighted so that their losses add up to that of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import paddle


def split_batch(batch: dict[str, paddle.Tensor], size: int) -> list[dict[str, paddle.Tensor]]:
    """Cut a batch along the examples into micro-batches of at most `size`; one that fits is returned as it is."""
    examples = len(next(iter(batch.values())))
    if examples <= size:
        return [batch]
    return [
        {name: tensor[start : start + size] for name, tensor in batch.items()} for start in range(0, examples, size)
    ]


def loss_weights(num_terms: Sequence[int]) -> list[float]:
    """The weight of each micro-batch's mean loss in that of the whole batch: its share of the loss terms."""
    return [count / max(1, sum(num_terms)) for count in num_terms]
