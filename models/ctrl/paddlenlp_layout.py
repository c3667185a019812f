"""PaddleNLP's names and layouts of CTRL's weights and configuration keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.port.paddlenlp_layout import Layout, as_floats
from models.port.schema import ConfigError
from models.port.weights import WeightsError

#: Absolute tolerance of a stored position table. A float32 angle of position 50,000 is off by 0.003.
TABLE_TOLERANCE = 0.02
#: Names of the position table, in a model with a head and in a model without.
TABLE_NAMES = ("ctrl.pos_encoding.weight", "pos_encoding.weight")


class CTRLLayout(Layout):
    """Layout of a CTRL, whose position table is stored with the weights."""

    def complete_config(self, keys: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Add ``n_positions`` from the position table, and reject another epsilon than PaddleNLP's.

        Args:
            keys: configuration of the PaddleNLP checkpoint, changed in place.
            arrays: arrays of the checkpoint, by name.
        """
        table = _find_table(arrays)
        if "n_positions" not in keys and table is not None:
            keys["n_positions"] = len(table)
        if (epsilon := keys.get("layer_norm_epsilon", 1e-6)) != 1e-6:
            reason = "is that of every layer in PaddleNLP; only 1e-06 is supported"
            raise ConfigError("layer_norm_epsilon", f"{epsilon} {reason}")

    def is_constant(self, name: str) -> bool:
        """Return whether the array of this name is the position table, which the port does not store."""
        return name in TABLE_NAMES

    def check_constants(self, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
        """Check that the position table, if there is one, contains the sines and cosines that the port computes.

        Args:
            arrays: arrays of the checkpoint, by name.
            config: resolved configuration of the port.

        Raises:
            WeightsError: the table has another shape or other values.
        """
        table = _find_table(arrays)
        if table is None:
            return
        rates = 10000.0 ** (-np.arange(0, config["n_embd"], 2) / config["n_embd"])
        shape = (config["n_positions"], config["n_embd"])
        if table.shape != shape:
            raise WeightsError(f"pos_encoding.weight: shape {table.shape}, but the configuration wants {shape}")
        for start in range(0, shape[0], 1000):  # in parts, since a table of 50,000 positions has 64 million numbers
            rows = as_floats(table[start : start + 1000])
            angles = np.arange(start, start + len(rows))[:, None] * rates
            expected_rows = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
            if not np.allclose(rows, expected_rows, rtol=0, atol=TABLE_TOLERANCE):
                raise WeightsError("pos_encoding.weight: these are no sines and cosines of positions")


def _find_table(arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the stored position table, (n_positions, n_embd); None if the arrays have none."""
    return next((arrays[name] for name in TABLE_NAMES if name in arrays), None)


LAYOUT = CTRLLayout(
    paddlenlp_prefix="ctrl.",
    prefix="transformer.",
    key_names={
        "max_position_embeddings": "n_positions", "hidden_size": "n_embd", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer", "intermediate_size": "dff", "num_classes": "num_labels",
    },
    roles={"lm_head.weight": "embedding"},  # PaddleNLP also stores a tied output layer
)  # fmt: skip
