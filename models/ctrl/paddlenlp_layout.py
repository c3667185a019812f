"""PaddleNLP's layout of a CTRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.port.paddlenlp_layout import Layout, numbers
from models.port.schema import ConfigError
from models.port.weights import WeightsError

#: Tolerance for float32 sines of positions up to 50,000 from any library: such an angle is off by 0.003.
NEAR_TABLE = 0.02
#: The position table, in a whole model and in a body.
TABLES = ("ctrl.pos_encoding.weight", "pos_encoding.weight")


class CTRLLayout(Layout):
    """Stores its position table."""

    def settle(self, keys: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        table = _table(arrays)
        if "n_positions" not in keys and table is not None:
            keys["n_positions"] = len(table)
        if (given := keys.get("layer_norm_epsilon", 1e-6)) != 1e-6:
            only = "is that of every layer in PaddleNLP; only 1e-06 is supported"
            raise ConfigError("layer_norm_epsilon", f"{given} {only}")

    def is_constant(self, name: str) -> bool:
        return name in TABLES

    def check_constants(self, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
        table = _table(arrays)
        if table is None:
            return
        rates = 10000.0 ** (-np.arange(0, config["n_embd"], 2) / config["n_embd"])
        wanted = (config["n_positions"], config["n_embd"])
        if table.shape != wanted:
            raise WeightsError(f"pos_encoding.weight: shape {table.shape}, but the configuration wants {wanted}")
        for start in range(0, wanted[0], 1000):  # in parts: the table of 50,000 positions has 64 million numbers
            rows = numbers(table[start : start + 1000])
            angles = np.arange(start, start + len(rows))[:, None] * rates
            wanted_rows = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
            if not np.allclose(rows, wanted_rows, rtol=0, atol=NEAR_TABLE):
                raise WeightsError("pos_encoding.weight: these are no sines and cosines of positions")


def _table(arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    return next((arrays[name] for name in TABLES if name in arrays), None)


LAYOUT = CTRLLayout(
    theirs="ctrl.",
    ours="transformer.",
    renamed={
        "max_position_embeddings": "n_positions", "hidden_size": "n_embd", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer", "intermediate_size": "dff", "num_classes": "num_labels",
    },
    roles={"lm_head.weight": "embedding"},  # also where it is tied
)  # fmt: skip
