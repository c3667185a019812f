"""Random CTRL configurations for sweeps over correct ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolkit.parity.trials.choices import choose_values

#: Configuration keys that a sweep prints for each gate.
PRINTED_KEYS = ("n_layer", "n_embd", "n_head", "dff", "resid_pdrop")
#: Values of configuration keys that do not change the parameters.
VARIED_VALUES: dict[str, tuple] = {"embd_pdrop": (0.0, 0.1), "resid_pdrop": (0.0, 0.1, 0.3)}
#: Values of the settings of the port.
PORT_VALUES: dict[str, tuple] = {"recompute": (False, True)}


def draw_config(head: str, one_of: Callable[..., Any]) -> tuple[dict[str, Any], int]:
    """Return a random configuration and a random length of the texts in tokens.

    Args:
        head: unused.
        one_of: function that picks one of its arguments.
    """
    heads = one_of(1, 2, 4)
    config = {
        "n_embd": heads * one_of(8, 16, 24),
        "n_head": heads,
        "dff": one_of(16, 48, 128),
        "n_layer": one_of(1, 2, 3, 6),
        "n_positions": 128,
        "vocab_size": one_of(32, 320),
        **choose_values(VARIED_VALUES, one_of),
        "layer_norm_epsilon": one_of(1e-6, 1e-5),
        "initializer_range": one_of(0.02, 0.2),
        "tie_word_embeddings": one_of(True, True, False),
        "num_labels": one_of(2, 7),
        "pad_token_id": 0,
    }
    return config, one_of(8, 33, 128)
