"""Reformers of a few hundred parameters in evaluation mode, texts for them, and the configuration of small recipes."""

from __future__ import annotations

import numpy as np
import paddle

from models.reformer import weights
from models.reformer.config import ReformerConfig
from models.reformer.modeling import ReformerModelWithLMHead

#: Of recipes that train: local and LSH layers, neighbouring chunks on both sides.
SMALL_CONFIG = {
    "attn_layers": ["local", "lsh"], "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16,
    "feed_forward_size": 32, "local_attn_chunk_length": 16, "local_num_chunks_after": 1, "lsh_attn_chunk_length": 16,
    "num_buckets": 4, "axial_pos_embds_dim": [8, 24], "axial_norm_std": 0.02,
}  # fmt: skip
#: Of language models: chunks that most lengths are no multiple of.
SMALL_DECODER = {
    "vocab_size": 50, "hidden_size": 32, "attn_layers": ["local", "lsh", "local"], "num_attention_heads": 2,
    "attention_head_size": 16, "feed_forward_size": 48, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 6,
    "num_hashes": 2, "num_buckets": 4, "axial_pos_embds_dim": [8, 24], "is_decoder": True,
}  # fmt: skip
#: How long a text is with all of its padding, and the token of that.
WHOLE, PAD = 96, 1


def reformer(kind, **keys):
    """Of class ``kind``, with its weights large enough that what is seen counts."""
    config = {
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_buckets": 4,
        "axial_pos_shape": [8, 12],
        "axial_pos_embds_dim": [8, 8],
        "hidden_size": 16,
        "num_attention_heads": 2,
        "attention_head_size": 8,
        "feed_forward_size": 16,
        "vocab_size": 40,
        "pad_token_id": PAD,
        "hash_seed": 3,
        "is_decoder": False,
        "initializer_range": 0.5,
    }
    model = kind(ReformerConfig(**{**config, **keys}))
    model.eval()
    return model


def texts(lengths):
    """A batch of texts of so many tokens, each padded."""
    draw = np.random.default_rng(len(lengths))
    kept = np.arange(WHOLE) < np.array(lengths)[:, None]
    tokens = np.where(kept, draw.integers(2, 40, kept.shape), PAD)
    return {"input_ids": paddle.to_tensor(tokens), "attention_mask": paddle.to_tensor(kept.astype("int64"))}


def decoder(dtype: str = "float64", **keys) -> ReformerModelWithLMHead:
    """A language model of :data:`SMALL_DECODER`, with its weights large enough that what is seen counts."""
    config = ReformerConfig(**{**SMALL_DECODER, **keys})
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        model = ReformerModelWithLMHead(config)
    finally:
        paddle.set_default_dtype(before)
    louder = {"initializer_range": 0.4, "axial_norm_std": 0.3}
    weights.load(model, weights.initial_weights({**config.to_dict(), **louder}, "causal_lm", 1))
    model.eval()
    return model
