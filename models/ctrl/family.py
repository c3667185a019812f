"""Description of CTRL (Keskar et al. 2019) that needs no import of its port."""

from __future__ import annotations

from models.families import ModelFamily

FAMILY = ModelFamily(
    title="CTRL",
    heads=("causal_lm", "sequence_classification"),
    tokenizers={"bpe": "a folder with vocab.json and merges.txt", "checkpoint": ""},
    checkpoints=("Salesforce/ctrl",),
    constants=("pos_encoding",),
    config_class="CTRLConfig",
    drafted_heads=("causal_lm",),
    recipe_keys={"train.recompute": False},
)
