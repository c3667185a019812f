"""DeBERTa-v2 of transformers: content and positions attend to each other, shared keys, log buckets, a convolution."""

import numpy as np
from transformers import DebertaV2Config, DebertaV2ForTokenClassification


def build(config):
    return DebertaV2ForTokenClassification(
        DebertaV2Config(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=3,
            max_position_embeddings=32,
            relative_attention=True,
            position_buckets=4,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            conv_kernel_size=3,
            conv_act="gelu",
            type_vocab_size=0,
            layer_norm_eps=1e-7,
            num_labels=5,
            initializer_range=0.2,
        )
    )


def batch(config, rng):
    mask = (np.arange(11) < np.array([[11], [8], [4]])).astype(np.int64)
    labels = np.where(mask, rng.integers(0, 5, (3, 11)), -100)
    return {"input_ids": rng.integers(1, 61, (3, 11)) * mask, "attention_mask": mask, "labels": labels}
