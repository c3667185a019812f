"""A Reformer that trains on fewer tokens than its axial position table has: cut for training, restored when saved.

Position i is row i // columns and column i % columns. In evaluation the reference takes the first positions of the
table for a shorter text, and so the first rows of the first factor. In training it needs a table of exactly the text's
length. So the trained model's table has only those rows, and nothing, not even weight decay, touches the others. When
the model is saved, they are appended to the trained ones again.
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
    """Return the keys that change in the model for ``length`` tokens, a multiple of the table's columns.

    ``max_position_embeddings`` stays: with axial positions it has no rows, and LSH's bucket count depends on it.
    """
    columns = config["axial_pos_shape"][1]
    return {"axial_pos_shape": [length // columns, columns]}


def cut_weights(weights: Mapping[str, np.ndarray], cut: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the cut model's weights: first rows, all else as is.

    Args:
        weights: of the whole model, by Hugging Face's names.
        cut: of :func:`cut_config`.
    """
    return {**weights, ROWS: np.asarray(weights[ROWS])[: cut["axial_pos_shape"][0]]}


def unreached_rows(weights: Mapping[str, np.ndarray], cut: Mapping[str, Any]) -> np.ndarray:
    """Return the rows that :func:`cut_weights` omits, (rows, 1, width)."""
    return np.array(weights[ROWS][cut["axial_pos_shape"][0] :])


def restore_config(config: Mapping[str, Any], unreached: np.ndarray) -> dict[str, Any]:
    """Return the whole model's keys that differ from the cut one's."""
    rows, columns = config["axial_pos_shape"]
    return {"axial_pos_shape": [rows + len(unreached), columns]}


def restore_weights(weights: Mapping[str, np.ndarray], unreached: np.ndarray) -> Mapping[str, np.ndarray]:
    """The cut model's weights with the other rows appended bit for bit; each made on access."""

    def rows() -> np.ndarray:
        return np.concatenate([weights[ROWS], unreached.astype(weights[ROWS].dtype)])

    return OnDemand({name: rows if name == ROWS else partial(weights.__getitem__, name) for name in weights})
