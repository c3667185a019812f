"""What both sides have to know of a Reformer in evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Heads of which the port leaves something out: in evaluation what they do not read of the last layer, or in training
#: the scores of positions without a label.
NARROWED_HEADS = ("sequence_classification", "masked_lm")


#: Kind of R64's buckets (B, H, R, T) of a text that is decoded token by token, each round's from 0.
DECODED_BUCKETS = "decoded"


def first_of_rounds(rounds: int, num_buckets: int | Sequence[int], is_padded: bool) -> np.ndarray:
    """Return each hash round's first bucket, (R, 1); padding has a bucket of its own."""
    count = math.prod([num_buckets] if isinstance(num_buckets, int) else num_buckets)
    return np.arange(rounds)[:, None] * (count + is_padded)


def unit(config: Mapping[str, Any]) -> int:
    """Divisor that a text's length must have in evaluation: where feed-forward or scores are computed by
    chunks of positions, these must come out even, in the text padded to whole chunks of attention."""
    sizes = [config.get(f"chunk_size_{part}") or 1 for part in ("feed_forward", "lm_head")]
    if sizes[0] > 1:
        sizes += [config[f"{kind}_attn_chunk_length"] for kind in ("local", "lsh")]
    return math.lcm(*sizes)


def padded(config: Mapping[str, Any], length: int) -> int:
    """The least length, from this one on, of texts that are computed whole: of whole chunks unless it is in one."""
    sizes = [config.get(f"chunk_size_{part}") or 1 for part in ("feed_forward", "lm_head")]
    chunks = [config[f"{kind}_attn_chunk_length"] for kind in set(config["attn_layers"])]
    least = _multiple(math.lcm(*sizes), length)
    return least if least <= min(chunks) else _multiple(math.lcm(*sizes, *chunks), length)


def _multiple(unit: int, least: int) -> int:
    return -(-least // unit) * unit
