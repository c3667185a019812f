"""From examples to a batch, and from a batch to micro-batches that fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models import families

if TYPE_CHECKING:
    import paddle

#: A label that the loss leaves out, by the convention of both frameworks' cross entropy.
IGNORED_LABEL = -100


def collate(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Stack examples of one shape to arrays [B, ...] under the same keys: floats float32, others int64."""
    return {key: np.stack([_plain(row[key]) for row in rows]) for key in rows[0]}


def _plain(value: np.ndarray) -> np.ndarray:
    value = np.asarray(value)
    return value.astype(np.float32 if value.dtype.kind == "f" else np.int64)


#: Arrays (B, T) of a batch by which padding is known.
PADDED = ("input_ids", "attention_mask")


def without_padding(batch: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Cut an evaluation batch to fewer tokens that give the same results.

    Padding is what is both unattended and the pad token: CTRL finds a text's last token by the pad token alone. A batch
    with a text of nothing but padding stays as it is: there padding is all that is read.

    Args:
        batch: with both of :data:`PADDED`; arrays or tensors.
    """
    if config.pad_token_id is None:
        return dict(batch)
    tokens, mask = (np.asarray(batch[name]) for name in PADDED)
    kept = (mask != 0) | (tokens != config.pad_token_id)
    if not kept.any(1).all():
        return dict(batch)
    whole, longest = kept.shape[1], int(np.flatnonzero(kept.any(0))[-1]) + 1
    length = families.part(config.model_type, "lengths").read_alike(vars(config), longest, whole)
    return {name: value[:, :length] if _is_by_token(value, tokens) else value for name, value in batch.items()}


def _is_by_token(value: Any, tokens: np.ndarray) -> bool:
    """Whether an array of a batch has a whole number for each token, as a mask and the labels of tokens have."""
    given = np.asarray(value)
    return given.shape == tokens.shape and given.dtype.kind in "iu"


def split_batch(batch: dict[str, paddle.Tensor], size: int) -> list[dict[str, paddle.Tensor]]:
    """Cut a batch along the examples into micro-batches of at most `size`; one that fits is returned as it is."""
    examples = len(next(iter(batch.values())))
    if examples <= size:
        return [batch]
    return [
        {name: tensor[start : start + size] for name, tensor in batch.items()} for start in range(0, examples, size)
    ]


def loss_weights(num_terms: Sequence[float], total: float | None = None) -> list[float]:
    """The weight of each micro-batch's mean loss in that of the whole batch: its share of the loss terms. ``total``
    counts the terms of the whole batch, where other processes have a part of it."""
    whole = sum(num_terms) if total is None else total
    return [count / whole if whole else 0.0 for count in num_terms]


def weight_of_labels(labels: np.ndarray, class_weights: np.ndarray) -> float:
    """Sum of the class weights of the labels (B,), without ignored ones: divisor of a weighted mean."""
    return float(class_weights.astype(np.float64)[labels[labels != IGNORED_LABEL]].sum())
