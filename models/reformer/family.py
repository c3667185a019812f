"""Description of Reformer (Kitaev, Kaiser, Levskaya 2020) that needs no import of its port."""

from __future__ import annotations

from models.families import ModelFamily

FAMILY = ModelFamily(
    title="Reformer",
    heads=("sequence_classification", "question_answering", "causal_lm", "masked_lm", "token_classification"),
    tokenizers={"bytes": "", "sentencepiece": "a spiece.model", "checkpoint": ""},
    checkpoints=("google/reformer-enwik8", "google/reformer-crime-and-punishment"),
    settings={"backward": ("auto", "reversible", "autograd"), "residual": ("wide", "plain")},
    config_class="ReformerConfig",
    table_key="axial_pos_shape",
    causal_key="is_decoder",
    seed_key="hash_seed",
    drafted_heads=("sequence_classification", "question_answering", "token_classification"),
    is_default=True,
)
