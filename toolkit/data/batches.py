"""Stack examples to a batch, and divide a batch into micro-batches that fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models import families

if TYPE_CHECKING:
    import paddle

#: Label that the cross entropy of both frameworks ignores.
IGNORED_LABEL = -100


def collate(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Stack examples of equal shape to arrays (B, ...) under the same keys: floats as float32, others as int64.

    Args:
        rows: examples, each with its arrays by key.
    """
    return {key: np.stack([_convert_dtype(row[key]) for row in rows]) for key in rows[0]}


def _convert_dtype(array: np.ndarray) -> np.ndarray:
    """Return an array as float32 if it holds floating-point numbers, otherwise as int64."""
    array = np.asarray(array)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


#: Arrays (B, T) of a batch that show which tokens are padding.
PADDING_ARRAYS = ("input_ids", "attention_mask")


def trim_padding(batch: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return an evaluation batch with fewer tokens that has the same results.

    A token is padding if it is both masked and the pad token, because CTRL finds a text's last token only by the pad
    token. A batch with a text of only padding is returned unchanged, because the model reads that padding.

    Args:
        batch: arrays or tensors by name, with both of :data:`PADDING_ARRAYS`.
        config: configuration of the model.
    """
    if config.pad_token_id is None:
        return dict(batch)
    tokens, mask = (np.asarray(batch[name]) for name in PADDING_ARRAYS)
    is_content = (mask != 0) | (tokens != config.pad_token_id)
    if not is_content.any(1).all():
        return dict(batch)
    full_length, max_content_length = is_content.shape[1], int(np.flatnonzero(is_content.any(0))[-1]) + 1
    length = families.part(config.model_type, "lengths").equivalent_length(
        vars(config), max_content_length, full_length
    )
    return {name: value[:, :length] if _has_value_per_token(value, tokens) else value for name, value in batch.items()}


def _has_value_per_token(value: Any, tokens: np.ndarray) -> bool:
    """Return whether an array of a batch has an integer for each token, as masks and token labels do."""
    array = np.asarray(value)
    return array.shape == tokens.shape and array.dtype.kind in "iu"


def split_batch(batch: Mapping[str, paddle.Tensor], max_examples: int) -> list[Mapping[str, paddle.Tensor]]:
    """Divide a batch into micro-batches of at most `max_examples`; a batch that fits is returned unchanged."""
    num_examples = len(next(iter(batch.values())))
    if num_examples <= max_examples:
        return [batch]
    return [
        {name: tensor[start : start + max_examples] for name, tensor in batch.items()}
        for start in range(0, num_examples, max_examples)
    ]


def compute_loss_weights(num_terms: Sequence[float], batch_terms: float | None = None) -> list[float]:
    """Return the weight of each micro-batch's mean loss in the mean loss of the whole batch.

    Args:
        num_terms: number of loss terms of each micro-batch.
        batch_terms: number of loss terms of the whole batch; None for the sum of `num_terms`. It is larger if other
            processes compute a part of the batch.
    """
    total_terms = sum(num_terms) if batch_terms is None else batch_terms
    return [count / total_terms if total_terms else 0.0 for count in num_terms]


def sum_label_weights(labels: np.ndarray, class_weights: np.ndarray) -> float:
    """Return the sum of the class weights of the labels (B,) without ignored labels, the divisor of a weighted mean."""
    return float(class_weights.astype(np.float64)[labels[labels != IGNORED_LABEL]].sum())
