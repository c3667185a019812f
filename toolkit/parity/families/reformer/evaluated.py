"""What both sides have to know of a Reformer in evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Heads of which the port leaves something out: in evaluation what they do not read of the last layer, or in training
#: the scores of positions without a label.
NARROWED_HEADS = ("sequence_classification", "masked_lm")


def unit(config: Mapping[str, Any]) -> int:
    """Divisor that a text's length must have in evaluation: where feed-forward or scores are computed by
    chunks of positions, these must come out even, in the text padded to whole chunks of attention."""
    sizes = [config.get(f"chunk_size_{part}") or 1 for part in ("feed_forward", "lm_head")]
    if sizes[0] > 1:
        sizes += [config[f"{kind}_attn_chunk_length"] for kind in ("local", "lsh")]
    return math.lcm(*sizes)
