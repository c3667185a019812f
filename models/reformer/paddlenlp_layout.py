"""PaddleNLP's names and layouts of Reformer's weights and configuration keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.port.paddlenlp_layout import Layout, as_floats
from models.port.schema import ConfigError
from models.port.weights import WeightsError
from models.reformer.weights import MASK_CONSTANTS


class ReformerLayout(Layout):
    """Layout of a Reformer, which stores mask values, and the number of layers in two keys."""

    def complete_config(self, keys: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Check that ``num_hidden_layers`` equals the number of entries of ``attn_layers``; nothing has to be added.

        Args:
            keys: configuration of the PaddleNLP checkpoint.
            arrays: arrays of the checkpoint, by name; not used.
        """
        kinds, count = keys["attn_layers"], keys.get("num_hidden_layers")
        if count is not None and isinstance(kinds, list) and len(kinds) != count:
            raise ConfigError("num_hidden_layers", f"{count} does not fit the {len(kinds)} entries of attn_layers")

    def is_constant(self, name: str) -> bool:
        """Return whether the checkpoint's array of this name is a mask value, which has no parameter in the port."""
        return name.rsplit(".", 1)[-1] in MASK_CONSTANTS

    def check_constants(self, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
        """Check that the stored mask values equal the values that the port uses.

        Args:
            arrays: arrays of the checkpoint, by name.
            config: resolved configuration of the port; not used.

        Raises:
            WeightsError: a mask value differs.
        """
        for name, value in arrays.items():
            constant = MASK_CONSTANTS.get(name.rsplit(".", 1)[-1])
            if constant is not None and not np.allclose(as_floats(value), constant, rtol=1e-2):
                raise WeightsError(f"{name}: it is not the {constant} of the model")


LAYOUT = ReformerLayout(
    paddlenlp_prefix="reformer.",
    prefix="reformer.",
    key_names={"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers", "num_classes": "num_labels"},
    defaults={
        "attention_head_size": 128,
        "attn_layers": ["local", "local", "lsh", "local"] * 3,
        "axial_pos_embds_dim": [256, 768],
        "axial_pos_shape": [128, 512],
        "feed_forward_size": 4096,
        "hidden_dropout_prob": 0.2,
        "hidden_size": 1024,
        "is_decoder": True,
        "local_attention_probs_dropout_prob": 0.2,
        "local_attn_chunk_length": 128,
        "lsh_attention_probs_dropout_prob": 0.1,
        "lsh_attn_chunk_length": 256,
        "max_position_embeddings": 65536,
        "num_attention_heads": 8,
        "num_buckets": 512,
        "num_hashes": 4,
        "vocab_size": 258,
    },
    roles={"lm_head.decoder.bias": "bias"},
)
