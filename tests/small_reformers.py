"""Create Reformers with a few hundred parameters in evaluation mode, texts for them, and small configurations."""

from __future__ import annotations

import numpy as np
import paddle

from models.reformer import weights
from models.reformer.config import ReformerConfig
from models.reformer.modeling import ReformerModelWithLMHead

#: Configuration of recipes that train: local and LSH layers, neighboring chunks on both sides.
SMALL_CONFIG = {
    "attn_layers": ["local", "lsh"], "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16,
    "feed_forward_size": 32, "local_attn_chunk_length": 16, "local_num_chunks_after": 1, "lsh_attn_chunk_length": 16,
    "num_buckets": 4, "axial_pos_embds_dim": [8, 24], "axial_norm_std": 0.02,
}  # fmt: skip
#: Configuration of language models; most lengths are not a multiple of its chunks.
SMALL_DECODER = {
    "vocab_size": 50, "hidden_size": 32, "attn_layers": ["local", "lsh", "local"], "num_attention_heads": 2,
    "attention_head_size": 16, "feed_forward_size": 48, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 6,
    "num_hashes": 2, "num_buckets": 4, "axial_pos_embds_dim": [8, 24], "is_decoder": True,
}  # fmt: skip
#: The length of a text with all its padding, and the padding token.
WHOLE, PAD = 96, 1


def reformer(kind, **keys):
    """Return a model of class ``kind`` with large weights, so that its inputs matter."""
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
    """Return a batch of padded texts with these numbers of tokens."""
    draw = np.random.default_rng(len(lengths))
    keep_mask = np.arange(WHOLE) < np.array(lengths)[:, None]
    tokens = np.where(keep_mask, draw.integers(2, 40, keep_mask.shape), PAD)
    return {"input_ids": paddle.to_tensor(tokens), "attention_mask": paddle.to_tensor(keep_mask.astype("int64"))}


def decoder(dtype: str = "float64", **keys) -> ReformerModelWithLMHead:
    """Return a language model of :data:`SMALL_DECODER` with large weights, so that its inputs matter."""
    config = ReformerConfig(**{**SMALL_DECODER, **keys})
    default_dtype = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        model = ReformerModelWithLMHead(config)
    finally:
        paddle.set_default_dtype(default_dtype)
    louder = {"initializer_range": 0.4, "axial_norm_std": 0.3}
    weights.load(model, weights.initial_weights({**config.to_dict(), **louder}, "causal_lm", 1))
    model.eval()
    return model
