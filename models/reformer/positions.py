"""Cut the axial position table of a Reformer that trains on shorter texts, and restore it when the model is saved.

Position i has row i // columns and column i % columns. In evaluation, the reference uses the first positions of the
table for a shorter text, and therefore the first rows of the first factor. In training it needs a table of exactly the
text's length. The table of the trained model therefore has only these rows. The other rows do not change, not even by
weight decay, and are appended again when the model is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from models.files.tensor_file import LazyArrays

#: Name of the table's first factor, (rows, 1, width).
ROWS = "reformer.embeddings.position_embeddings.weights.0"


def cut_config(config: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the configuration keys that change for ``length`` tokens, a multiple of the table's columns.

    ``max_position_embeddings`` does not change, because the number of LSH buckets depends on it.
    """
    columns = config["axial_pos_shape"][1]
    return {"axial_pos_shape": [length // columns, columns]}


def cut_weights(weights: Mapping[str, np.ndarray], cut: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights of the cut model, with only the first rows of the table.

    Args:
        weights: weights of the whole model by Hugging Face's names.
        cut: configuration keys from :func:`cut_config`.
    """
    return {**weights, ROWS: np.asarray(weights[ROWS])[: cut["axial_pos_shape"][0]]}


def unreached_rows(weights: Mapping[str, np.ndarray], cut: Mapping[str, Any]) -> np.ndarray:
    """Return the rows of the table that :func:`cut_weights` omits, (rows, 1, width)."""
    return np.array(weights[ROWS][cut["axial_pos_shape"][0] :])


def restore_config(config: Mapping[str, Any], other_rows: np.ndarray) -> dict[str, Any]:
    """Return the configuration keys of the whole model that differ from the cut model's ``config``."""
    rows, columns = config["axial_pos_shape"]
    return {"axial_pos_shape": [rows + len(other_rows), columns]}


def restore_weights(weights: Mapping[str, np.ndarray], other_rows: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the weights of the whole model by name, each computed on access.

    Args:
        weights: weights of the cut model by name.
        other_rows: rows from :func:`unreached_rows`, which are appended bit for bit.
    """

    def restore_rows() -> np.ndarray:
        return np.concatenate([weights[ROWS], other_rows.astype(weights[ROWS].dtype)])

    return LazyArrays({name: restore_rows if name == ROWS else partial(weights.__getitem__, name) for name in weights})
