"""What is known of it before its port is imported."""

from __future__ import annotations

from models.families import ModelFamily

FAMILY = ModelFamily(
    title="Echo",
    heads=("causal_lm", "sequence_classification"),
    tokenizers={"bytes": ""},
    settings={"means": ("product", "sum")},
)
