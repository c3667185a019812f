"""Classification metrics, in NumPy alone."""

from __future__ import annotations

import numpy as np

#: A label that the loss leaves out, by the convention of both frameworks' cross entropy.
IGNORED_LABEL = -100


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of predictions [N] that equal their label [N]; 0 for none."""
    return float(np.mean(predictions == labels)) if len(labels) else 0.0


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean over classes of F1 = 2 TP / (2 TP + FP + FN), of predictions [N] and labels [N]; 0 for none.

    As scikit-learn's ``f1_score(average="macro")``: the classes are those that occur, predicted or true, so a class
    that is absent from a small split neither helps nor harms.
    """
    classes = np.union1d(predictions, labels)
    scores = []
    for index in classes:
        hits = np.sum((predictions == index) & (labels == index))
        scores.append(2 * hits / (np.sum(predictions == index) + np.sum(labels == index)))
    return float(np.mean(scores)) if scores else 0.0


def classification(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """``accuracy`` and ``macro_f1`` of logits [N, L] against labels [N].

    Raises:
        ValueError: the shapes do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} should be [N, L] and [N]")
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": accuracy(predictions, labels), "macro_f1": macro_f1(predictions, labels)}
