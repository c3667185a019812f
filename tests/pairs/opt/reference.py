"""OPT of transformers, small, and the batch that both are given."""

import numpy as np
from transformers import OPTConfig, OPTForCausalLM

SMALL = {
    "vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
    "max_position_embeddings": 40, "word_embed_proj_dim": 32,
}  # fmt: skip


def build(config):
    return OPTForCausalLM(OPTConfig(**{**SMALL, **config}))


def batch(config, rng):
    ids = rng.integers(4, 101, (3, 17))
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": ids}
    return batch if config.get("shifted", True) else {**batch, "shift_labels": ids}  # as they are, as the port does
