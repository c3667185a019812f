"""Random Reformer configurations for sweeps over correct ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolkit.parity.trials.choices import choose_values

#: Configuration keys that a sweep prints for each gate.
PRINTED_KEYS = ("attn_layers", "hidden_size", "axial_pos_shape", "num_hashes", "hidden_dropout_prob")
#: Values of configuration keys that do not change the parameters.
VARIED_VALUES: dict[str, tuple] = {
    "num_hashes": (1, 2, 4),
    "hidden_dropout_prob": (0.0, 0.05, 0.3),
    "local_attention_probs_dropout_prob": (0.0, 0.1),
    "lsh_attention_probs_dropout_prob": (0.0, 0.1),
}
#: Values of the settings of the port.
PORT_VALUES: dict[str, tuple] = {"backward": ("reversible", "autograd"), "residual": ("wide", "plain")}


def draw_config(head: str, one_of: Callable[..., Any]) -> tuple[dict[str, Any], int]:
    """Return a random configuration and a random length of the texts in tokens.

    Args:
        head: head of the model.
        one_of: function that picks one of its arguments.
    """
    chunk, heads, size = one_of(8, 16, 32), one_of(1, 2, 3), one_of(8, 16, 24)
    hidden_size = one_of(24, 32, 64)
    shape = [chunk, one_of(1, 2, 4, 8)]
    config = {
        "attn_layers": [one_of("local", "lsh") for _ in range(one_of(1, 2, 3, 4, 8))],
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "attention_head_size": size,
        "feed_forward_size": one_of(16, 48, 128),
        "axial_pos_embds": one_of(False, True, True, True),
        "axial_pos_shape": shape,
        "axial_pos_embds_dim": [8, hidden_size - 8],
        "max_position_embeddings": shape[0] * shape[1],
        "local_attn_chunk_length": chunk,
        "lsh_attn_chunk_length": one_of(chunk, 2 * chunk) if shape[1] % 2 == 0 else chunk,
        "local_num_chunks_after": 0 if head == "causal_lm" else one_of(0, 1),
        "lsh_num_chunks_after": 0 if head == "causal_lm" else one_of(0, 1),
        **choose_values(VARIED_VALUES, one_of),
        "hidden_act": one_of("relu", "gelu", "gelu_new", "silu"),
        "is_decoder": head == "causal_lm",
        "vocab_size": one_of(32, 320),
        "num_labels": 2 if head == "question_answering" else one_of(2, 7),
    }
    return config, shape[0] * shape[1]
