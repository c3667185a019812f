"""Labels that reveal class weights.

If all examples have the same weight, the weighted mean of their losses equals the plain mean, so a port that ignores
the weights would not show.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def contrast_labels(labels: np.ndarray, class_weights: Sequence[float], own_labels: np.ndarray) -> np.ndarray:
    """Return labels for synthetic texts that contrast with the labels of the run's own texts.

    They alternate between the heaviest and lightest class, the next heaviest and next lightest, and so on, starting
    with a class that the own texts lack. With several labels per text, the first text has every label.

    Args:
        labels: labels of the synthetic texts, int64 (N,), or float32 (N, labels) of 0 and 1.
        class_weights: weight of each class in the loss.
        own_labels: labels of the run's own texts, with the same layout.
    """
    if labels.ndim > 1:
        return np.concatenate([np.ones_like(labels[:1]), labels[1:]])
    rising = np.argsort(class_weights, kind="stable")
    ends = np.stack([rising[::-1], rising], 1).ravel()[: len(rising)]
    if rising[-1] in own_labels:
        ends[:2] = ends[1::-1]
    return np.resize(ends, len(labels)).astype(labels.dtype)


def spread_labels_by_weight(labels: np.ndarray, class_weights: Sequence[float]) -> np.ndarray:
    """Return labels of an update's examples that run from the heaviest to the lightest class.

    The weights of micro-batches then differ from their numbers of examples. Several labels per text, (N, labels), are
    returned unchanged, since their weights do not change the divisor of the loss.

    Args:
        labels: labels of the examples, int64 (N,), or float32 (N, labels).
        class_weights: weight of each class in the loss.
    """
    if labels.ndim > 1:
        return labels
    falling = np.argsort(class_weights, kind="stable")[::-1]
    return falling[np.arange(len(labels)) * len(falling) // len(labels)].astype(labels.dtype)
