"""BERT of transformers, small, and the batch that both are given."""

import numpy as np
from transformers import BertConfig, BertForMaskedLM

SMALL = {
    "vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 2,
}  # fmt: skip


def build(config):
    return BertForMaskedLM(BertConfig(**{**SMALL, **config}))


def batch(config, rng):
    ids = rng.integers(1, 101, (3, 17))
    mask = np.arange(17) < np.array([[17], [12], [5]] if config.get("padded", True) else [[17]] * 3)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "labels": np.where(mask, ids, -100)}
