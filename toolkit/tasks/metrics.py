"""Compute classification and regression metrics, and list the metrics of all tasks that are counts.

Label metrics are computed here and equal scikit-learn's to the last digit (the tests compare them). Importing
scikit-learn takes longer than computing them, and a confidence interval computes them for hundreds of samples.
Regression, which is rarer, is measured by scikit-learn and SciPy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

#: Metrics that count the examples of other metrics. They are shown without decimals and do not rate a model.
COUNTS = ("HasAns_total", "NoAns_total")


class LabelScores(NamedTuple):
    """Scores of each of L labels; 0 if the divisor is 0.

    Attributes:
        precision, recall, f1: scores, (L,) float64.
        support: number of texts with the label, (L,).
        num_predicted: number of texts with the label as a prediction, (L,).
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray
    num_predicted: np.ndarray


def perplexity_of_loss(loss: float) -> float:
    """Return the perplexity of a mean loss per token; infinity if it is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def confusion(labels: np.ndarray, predictions: np.ndarray, num_labels: int) -> np.ndarray:
    """Return the number of texts by true label (row) and predicted label (column), (num_labels, num_labels).

    Args:
        labels: ids of the true labels, (N,).
        predictions: ids of the predicted labels, (N,).
        num_labels: number of labels.
    """
    pairs = np.bincount(np.asarray(labels) * num_labels + np.asarray(predictions), minlength=num_labels * num_labels)
    return pairs.reshape(num_labels, num_labels)


def scores_of_labels(num_correct: np.ndarray, support: np.ndarray, num_predicted: np.ndarray) -> LabelScores:
    """Compute the scores of labels from counts of texts, (L,) each.

    Args:
        num_correct: number of texts with the label that are predicted to have it.
        support: number of texts with the label.
        num_predicted: number of texts with the label as a prediction.
    """
    return LabelScores(
        _divide_counts(num_correct, num_predicted),
        _divide_counts(num_correct, support),
        _divide_counts(2 * num_correct, support + num_predicted),
        support,
        num_predicted,
    )


def _divide_counts(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """Return the quotients of two arrays, element by element; 0 where a denominator is 0."""
    return np.divide(numerators, denominators, out=np.zeros(len(numerators)), where=denominators > 0)


def scores_of_classes(matrix: np.ndarray) -> LabelScores:
    """Compute the scores of classes, one per text, from the matrix of :func:`confusion`."""
    return scores_of_labels(np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0))


def scores_of_several(labels: np.ndarray, predictions: np.ndarray) -> LabelScores:
    """Compute the scores of labels, several per text.

    Args:
        labels: 1 for each label of a text and 0 otherwise, (N, L).
        predictions: 1 for each predicted label and 0 otherwise, (N, L).
    """
    return scores_of_labels((labels & predictions).sum(axis=0), labels.sum(axis=0), predictions.sum(axis=0))


def text_metrics(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute the metrics that fit the labels: classification, regression, or several labels per text.

    Args:
        logits: (N, L), or numbers (N, 1) in regression.
        labels: integers (N,) are classes, floats (N,) targets of regression, floats (N, L) of 0 and 1 several labels.
    """
    if labels.dtype.kind != "f":
        return classification(logits, labels)
    return regression(logits[:, 0], labels) if labels.ndim == 1 else multi_label(logits, labels)


def multi_label(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute the metrics of several labels per text, at a probability of 0.5 (:func:`threshold_metrics`).

    Args:
        logits: (N, L).
        labels: 1 for each label of a text and 0 otherwise, (N, L).

    Raises:
        ValueError: the shapes do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape:
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} should both be [N, L]")
    return threshold_metrics(logits, labels, 0.0)


def threshold_metrics(values: np.ndarray, labels: np.ndarray, threshold: float) -> dict[str, float]:
    """Return ``micro_f1``, ``macro_f1`` and ``subset_accuracy`` of the labels with values above a threshold.

    ``subset_accuracy`` is the share of texts with no wrong and no missing label. ``macro_f1`` is the mean over the
    labels that occur in the data or in the predictions.

    Args:
        values: logits or probabilities, (N, L).
        labels: 1 for each label of a text and 0 otherwise, (N, L).
        threshold: a label is predicted if its value is above this.
    """
    predictions, targets = (values > threshold).astype(np.int64), labels.astype(np.int64)
    scores = scores_of_several(targets, predictions)
    occurs = (scores.support + scores.num_predicted) > 0
    if not occurs.any():
        return {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": float(len(labels) > 0)}
    total_scores = scores_of_labels(
        *(np.array([count.sum()]) for count in (targets & predictions, targets, predictions))
    )
    return {
        "micro_f1": float(total_scores.f1[0]),
        "macro_f1": float(np.mean(scores.f1[occurs])),
        "subset_accuracy": float(np.mean((targets == predictions).all(axis=1))),
    }


def regression(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return ``mse``, ``mae``, and the correlations ``pearson`` and ``spearman``.

    The correlations are 0 if either side is constant.

    Args:
        predictions: predicted numbers, (N,).
        labels: numbers of the data, (N,).

    Raises:
        ValueError: the shapes do not fit.
    """
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    if predictions.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(f"predictions {predictions.shape} and labels {labels.shape} should both be [N]")
    predictions, labels = predictions.astype(np.float64), labels.astype(np.float64)
    if not len(labels):
        return {"mse": 0.0, "mae": 0.0, "pearson": 0.0, "spearman": 0.0}
    errors = {"mse": mean_squared_error(labels, predictions), "mae": mean_absolute_error(labels, predictions)}
    has_variance = len(labels) > 1 and np.ptp(predictions) > 0 and np.ptp(labels) > 0
    correlation_fns = {"pearson": pearsonr, "spearman": spearmanr}
    correlations = {
        name: float(call(labels, predictions)[0]) if has_variance else 0.0 for name, call in correlation_fns.items()
    }
    return {**{name: float(value) for name, value in errors.items()}, **correlations}


def classification(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return ``accuracy`` and ``macro_f1``; both are 0 if there are no texts.

    ``macro_f1`` is the mean over the classes that occur in the data or in the predictions, so a class that is absent
    from a small split neither raises nor lowers it.

    Args:
        logits: (N, L).
        labels: ids of the classes, (N,).

    Raises:
        ValueError: the shapes do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} should be [N, L] and [N]")
    if not len(labels):
        return {"accuracy": 0.0, "macro_f1": 0.0}
    predictions = np.argmax(logits, axis=-1)
    occurring_labels, ids = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    scores = scores_of_classes(confusion(ids[: len(labels)], ids[len(labels) :], len(occurring_labels)))
    return {"accuracy": float(np.mean(labels == predictions)), "macro_f1": float(np.mean(scores.f1))}
