"""A Reformer that trains on fewer tokens than its axial position table has: cut for training, restored when saved.

Position i is row i // columns and column i % columns. In evaluation the reference takes the first positions of the
table for a shorter text, and so the first rows of the first factor. In training it wants a table of just the text's
length. So what trains is a model whose table has only those rows: nothing, weight decay either, touches the others.
When it is saved, they stand behind the trained ones again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from models.files.tensor_file import OnDemand

#: The table's first factor, (rows, 1, width).
ROWS = "reformer.embeddings.position_embeddings.weights.0"


def cut_config(config: Mapping[str, Any], length: int) -> dict[str, Any]:
    """The keys that differ in the model that trains on ``length`` tokens, a multiple of the table's columns.

    ``max_position_embeddings`` stays: with axial positions it has no rows, and LSH's bucket count depends on it.
    """
    columns = config["axial_pos_shape"][1]
    return {"axial_pos_shape": [length // columns, columns]}


def cut_weights(weights: Mapping[str, np.ndarray], cut: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weights of the cut model: the first rows, all else as it is.

    Args:
        weights: of the whole model, by Hugging Face's names.
        cut: of :func:`cut_config`.
    """
    return {**weights, ROWS: np.asarray(weights[ROWS])[: cut["axial_pos_shape"][0]]}


def unreached_rows(weights: Mapping[str, np.ndarray], cut: Mapping[str, Any]) -> np.ndarray:
    """The rows that :func:`cut_weights` leaves out, (rows, 1, width)."""
    return np.array(weights[ROWS][cut["axial_pos_shape"][0] :])


def restore_config(config: Mapping[str, Any], unreached: np.ndarray) -> dict[str, Any]:
    """The keys of the whole model that differ from those of the cut one."""
    rows, columns = config["axial_pos_shape"]
    return {"axial_pos_shape": [rows + len(unreached), columns]}


def restore_weights(weights: Mapping[str, np.ndarray], unreached: np.ndarray) -> Mapping[str, np.ndarray]:
    """The weights of the whole model: those of the cut one, and behind its rows the others, bit for bit; each when it
    is asked for."""

    def rows() -> np.ndarray:
        return np.concatenate([weights[ROWS], unreached.astype(weights[ROWS].dtype)])

    return OnDemand({name: rows if name == ROWS else partial(weights.__getitem__, name) for name in weights})
