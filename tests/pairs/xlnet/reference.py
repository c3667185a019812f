"""XLNet of transformers: a content and a query stream over a permuted order, relative positions, segments, a memory."""

import numpy as np
from transformers import XLNetConfig, XLNetLMHeadModel


def build(config):
    return XLNetLMHeadModel(
        XLNetConfig(
            vocab_size=61, d_model=24, n_layer=2, n_head=3, d_inner=40, ff_activation="gelu", initializer_range=0.2
        )
    )


def batch(config, rng):
    """Predict three tokens of each text; each token depends on the tokens before it in a random order."""
    length, num_predicted = 9, 3
    order = np.argsort(rng.random((2, length)), -1)
    hidden = (order[:, :, None] <= order[:, None, :]).astype(np.float32)
    target_mapping = np.zeros((2, num_predicted, length), np.float32)
    last = np.argsort(order, -1)[:, -num_predicted:]
    np.put_along_axis(target_mapping, last[:, :, None], 1, -1)
    return {
        "input_ids": rng.integers(0, 61, (2, length)),
        "token_type_ids": np.tile(np.arange(length) >= 5, (2, 1)).astype(np.int64),
        "perm_mask": hidden,
        "target_mapping": target_mapping,
        "labels": rng.integers(0, 61, (2, num_predicted)),
    }


def loss(model, batch):
    return model(**batch).loss
