"""Losses of the reference that Paddle lacks or computes differently."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from models.operations.ops import cross_entropy as cross_entropies

IGNORED_LABEL = -100


def cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor, ignored_label: int = IGNORED_LABEL) -> paddle.Tensor:
    """Return the mean cross entropy over the labels that are not ignored.

    Paddle's own mean (3.3.1) divides by the number of all labels if ``ignore_index`` is negative. If all labels are
    ignored, the mean is NaN and its gradients are 0, as in torch.

    Args:
        logits: scores, (N, classes).
        labels: class of each row, int64 (N,).
        ignored_label: label of the rows that are ignored.
    """
    is_counted = labels != ignored_label
    losses = cross_entropies(logits, paddle.where(is_counted, labels, paddle.zeros_like(labels)))
    count = is_counted.sum().astype(losses.dtype)
    nan_if_empty = paddle.where(count == 0, paddle.full_like(count, math.nan), paddle.zeros_like(count))
    return (losses * is_counted.astype(losses.dtype)).sum() / count.clip(min=1) + nan_if_empty


def weighted_cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor, class_weights: paddle.Tensor) -> paddle.Tensor:
    """Return the mean cross entropy, weighted by the class of each row; NaN if all weights are 0.

    Args:
        logits: scores, (N, classes).
        labels: class of each row, int64 (N,); rows with :data:`IGNORED_LABEL` are ignored.
        class_weights: weight of each class, (classes,).
    """
    is_counted = labels != IGNORED_LABEL
    classes = paddle.where(is_counted, labels, paddle.zeros_like(labels))
    losses = cross_entropies(logits, classes)
    weight = paddle.gather(class_weights, classes).astype(losses.dtype) * is_counted.astype(losses.dtype)
    return (losses * weight).sum() / weight.sum()


def smoothed_cross_entropy(
    logits: paddle.Tensor, labels: paddle.Tensor, smoothing: float, weights: np.ndarray | None = None
) -> paddle.Tensor:
    """Return the mean cross entropy with smoothed labels (Szegedy et al. 2016, section 7).

    A label counts 1 - smoothing, and each class smoothing / classes. Both are multiplied by the weight of the class.
    The divisor is the same as without smoothing.

    Args:
        logits: scores, (N, classes).
        labels: class of each row, int64 (N,); rows with :data:`IGNORED_LABEL` are ignored.
        smoothing: share of each label that is spread over all classes.
        weights: weight of each class, (classes,); None for equal weights.
    """
    classes = logits.shape[-1]
    weight = paddle.ones([classes], logits.dtype) if weights is None else paddle.to_tensor(weights).astype(logits.dtype)
    is_counted = labels != IGNORED_LABEL
    one_hot = F.one_hot(paddle.where(is_counted, labels, paddle.zeros_like(labels)), classes).astype(logits.dtype)
    one_hot = one_hot * weight * is_counted.astype(logits.dtype).unsqueeze(-1)  # weighted, (N, classes)
    uniform = weight * is_counted.astype(logits.dtype).unsqueeze(-1) / classes
    target = (1 - smoothing) * one_hot + smoothing * uniform
    return -(target * F.log_softmax(logits, axis=-1)).sum() / one_hot.sum()


def next_tokens(labels: paddle.Tensor) -> paddle.Tensor:
    """Shift labels (B, T) one position left, so that each position has its next token; the last label is ignored."""
    return F.pad(labels[:, 1:], [0, 0, 0, 1], value=IGNORED_LABEL, pad_from_left_axis=True)


def next_token_loss(logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """Return the mean cross entropy of scores (B, T, vocabulary) for the next label of each position (B, T)."""
    return cross_entropy(logits.reshape([-1, logits.shape[-1]]), next_tokens(labels).flatten())


def classification(
    config: Any, logits: paddle.Tensor, labels: paddle.Tensor, weights: np.ndarray | None = None, smoothing: float = 0.0
) -> paddle.Tensor:
    """Return the mean loss for the ``problem_type`` of a configuration; if unset, the labels decide it.

    Args:
        config: configuration with ``problem_type``, which this function sets, and ``num_labels``.
        logits: scores or predicted numbers, (B, labels).
        labels: classes, int64 (B,); several labels of each text, float (B, labels); or numbers to predict, float (B,)
            or (B, labels).
        weights: weight of each class in the mean, float32 (labels,); with several labels of each text, weight of texts
            with the label relative to texts without it (``pos_weight``). None for equal weights.
        smoothing: share of each label that is spread over all classes, if texts have one label.
    """
    if config.problem_type is None:
        is_integer = labels.dtype in (paddle.int64, paddle.int32)
        problem_type = "single_label_classification" if is_integer else "multi_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else problem_type
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
