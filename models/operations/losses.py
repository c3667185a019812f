"""Losses of the reference that Paddle lacks, or computes differently."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from models.operations.ops import cross_entropy as cross_entropies

IGNORED_LABEL = -100


def cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor, ignored: int = IGNORED_LABEL) -> paddle.Tensor:
    """Return the mean cross entropy over the labels that are not ignored.

    Paddle's own mean (3.3.1) divides by the number of all labels if ``ignore_index`` is negative. If no label is left,
    the mean is NaN and its gradients are 0, as in torch.

    Args:
        logits: (N, classes).
        labels: int64 (N,); ``ignored`` is left out.
    """
    counted = labels != ignored
    losses = cross_entropies(logits, paddle.where(counted, labels, paddle.zeros_like(labels)))
    count = counted.sum().astype(losses.dtype)
    of_none = paddle.where(count == 0, paddle.full_like(count, math.nan), paddle.zeros_like(count))
    return (losses * counted.astype(losses.dtype)).sum() / count.clip(min=1) + of_none


def weighted_cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor, weights: paddle.Tensor) -> paddle.Tensor:
    """Return the cross entropies' mean weighted by label: sum(w * x) / sum(w), NaN if sum(w) is 0.

    Args:
        logits: (N, classes).
        labels: int64 (N,); :data:`IGNORED_LABEL` is left out.
        weights: (classes,).
    """
    counted = labels != IGNORED_LABEL
    chosen = paddle.where(counted, labels, paddle.zeros_like(labels))
    losses = cross_entropies(logits, chosen)
    weight = paddle.gather(weights, chosen).astype(losses.dtype) * counted.astype(losses.dtype)
    return (losses * weight).sum() / weight.sum()


def smoothed_cross_entropy(
    logits: paddle.Tensor, labels: paddle.Tensor, smoothing: float, weights: np.ndarray | None = None
) -> paddle.Tensor:
    """Return the mean cross entropy with smoothed labels (Szegedy et al. 2016, section 7): (1 - smoothing) of a label,
    and smoothing / classes of each class, both times the class's weight. The divisor is that of plain labels.

    Args:
        logits: (N, classes).
        labels: int64 (N,); :data:`IGNORED_LABEL` is left out.
        weights: (classes,), or None for 1 each.
    """
    classes = logits.shape[-1]
    weight = paddle.ones([classes], logits.dtype) if weights is None else paddle.to_tensor(weights).astype(logits.dtype)
    counted = labels != IGNORED_LABEL
    chosen = F.one_hot(paddle.where(counted, labels, paddle.zeros_like(labels)), classes).astype(logits.dtype)
    chosen = chosen * weight * counted.astype(logits.dtype).unsqueeze(-1)  # (N, classes), as each counts
    spread = weight * counted.astype(logits.dtype).unsqueeze(-1) / classes
    target = (1 - smoothing) * chosen + smoothing * spread
    return -(target * F.log_softmax(logits, axis=-1)).sum() / chosen.sum()


def next_tokens(labels: paddle.Tensor) -> paddle.Tensor:
    """Shift labels (B, T) one position left, to what each position predicts. The last is ignored."""
    return F.pad(labels[:, 1:], [0, 0, 0, 1], value=IGNORED_LABEL, pad_from_left_axis=True)


def next_token_loss(logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """Return the mean cross entropy of scores (B, T, vocabulary) for each position's next label (B, T)."""
    return cross_entropy(logits.reshape([-1, logits.shape[-1]]), next_tokens(labels).flatten())


def classification(
    config: Any, logits: paddle.Tensor, labels: paddle.Tensor, weights: np.ndarray | None = None, smoothing: float = 0.0
) -> paddle.Tensor:
    """Return the mean loss of the configuration's ``problem_type``; if unset, the labels decide it.

    Args:
        config: with ``problem_type`` and ``num_labels``.
        logits: (B, labels).
        labels: int64 (B,) classes; float (B, labels) for several labels at once; float (B,) for a number, or
            (B, labels) for several.
        weights: float32 (labels,), each class's weight in the mean; for several labels at once, the weight of texts
            with the label against those without (``pos_weight``); None for equal weights.
        smoothing: share of each of one-label texts' labels that is spread over all.
    """
    if config.problem_type is None:
        whole = labels.dtype in (paddle.int64, paddle.int32)
        several = "single_label_classification" if whole else "multi_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else several
    if config.problem_type == "regression":
        return F.mse_loss(logits.reshape(labels.shape), labels)
    if config.problem_type == "multi_label_classification":
        positive = None if weights is None else paddle.to_tensor(weights).astype(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=positive)
    if smoothing:
        return smoothed_cross_entropy(logits, labels.flatten(), smoothing, weights)
    if weights is not None:
        return weighted_cross_entropy(logits, labels.flatten(), paddle.to_tensor(weights))
    return cross_entropy(logits, labels.flatten())
