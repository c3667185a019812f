"""Lengths of texts and numbers of buckets for Reformer in evaluation mode, for both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Heads whose port skips unused results: in evaluation mode parts of the last layer, and in training the logits of
#: positions without a label.
NARROWED_HEADS = ("sequence_classification", "masked_lm")
#: Kind in the name of R64's buckets of a text that is decoded token by token, (B, H, R, T). The buckets of each hash
#: round are counted from 0.
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
    """Return the number that a text's length must be a multiple of in evaluation mode.

    If the feed-forward layers or the logits are computed in chunks of positions, the chunks must divide the length
    evenly, also after padding to whole chunks of attention.

    Args:
        config: keys and values of the configuration.
    """
    sizes = [config.get(f"chunk_size_{part}") or 1 for part in ("feed_forward", "lm_head")]
    if sizes[0] > 1:
        sizes += [config[f"{kind}_attn_chunk_length"] for kind in ("local", "lsh")]
    return math.lcm(*sizes)


def padded_length(config: Mapping[str, Any], length: int) -> int:
    """Return the smallest valid length of a padded text: a single chunk of attention, or whole chunks.

    Args:
        config: keys and values of the configuration.
        length: number of tokens of the text.
    """
    sizes = [config.get(f"chunk_size_{part}") or 1 for part in ("feed_forward", "lm_head")]
    chunks = [config[f"{kind}_attn_chunk_length"] for kind in set(config["attn_layers"])]
    rounded_length = _round_up(math.lcm(*sizes), length)
    return rounded_length if rounded_length <= min(chunks) else _round_up(math.lcm(*sizes, *chunks), length)


def _round_up(evaluation_unit: int, length: int) -> int:
    """Return the smallest multiple of ``evaluation_unit`` that is at least ``length``."""
    return -(-length // evaluation_unit) * evaluation_unit
