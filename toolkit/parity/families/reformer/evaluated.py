"""Lengths and buckets of a Reformer in evaluation, for both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Heads whose port leaves out unused results: in evaluation parts of the last layer, and in training the scores of
#: positions without a label.
NARROWED_HEADS = ("sequence_classification", "masked_lm")


#: Kind of R64's buckets of a text that is decoded token by token, (B, H, R, T); each round counts from 0.
DECODED_BUCKETS = "decoded"


def first_of_rounds(num_rounds: int, num_buckets: int | Sequence[int], is_padded: bool) -> np.ndarray:
    """Return the number of each hash round's first bucket, (R, 1).

    Args:
        num_rounds: number of hash rounds R.
        num_buckets: number of buckets of a round, or its factors.
        is_padded: whether each round has another bucket for padding.
    """
    num_buckets_of_round = math.prod([num_buckets] if isinstance(num_buckets, int) else num_buckets)
    return np.arange(num_rounds)[:, None] * (num_buckets_of_round + is_padded)


def evaluation_unit(config: Mapping[str, Any]) -> int:
    """Return the divisor of a text's length in evaluation.

    If the feed-forward layers or the scores are computed in chunks of positions, the chunks must divide the length
    evenly, also after padding to whole chunks of attention.
    """
    sizes = [config.get(f"chunk_size_{part}") or 1 for part in ("feed_forward", "lm_head")]
    if sizes[0] > 1:
        sizes += [config[f"{kind}_attn_chunk_length"] for kind in ("local", "lsh")]
    return math.lcm(*sizes)


def padded_length(config: Mapping[str, Any], length: int) -> int:
    """Return the smallest valid length of at least ``length``: a single chunk of attention, or whole chunks."""
    sizes = [config.get(f"chunk_size_{part}") or 1 for part in ("feed_forward", "lm_head")]
    chunks = [config[f"{kind}_attn_chunk_length"] for kind in set(config["attn_layers"])]
    rounded_length = _round_up(math.lcm(*sizes), length)
    return rounded_length if rounded_length <= min(chunks) else _round_up(math.lcm(*sizes, *chunks), length)


def _round_up(evaluation_unit: int, length: int) -> int:
    return -(-length // evaluation_unit) * evaluation_unit
