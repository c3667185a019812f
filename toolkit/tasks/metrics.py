"""Classification metrics, and which metrics of all tasks are counts.

Label metrics are computed here and equal scikit-learn's to the last digit (the tests compare them): importing it takes
longer than computing any of them. Regression, which is rarer, is measured by scikit-learn and SciPy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

#: Metrics that count the examples of other metrics: shown without decimals, and no score of a model.
COUNTS = ("HasAns_total", "NoAns_total")


class LabelScores(NamedTuple):
    """Scores of each of L labels; 0 where the divisor is 0.

    Attributes:
        precision, recall, f1: (L,) float64.
        support: (L,) number of texts that have it.
        given: (L,) number of texts that are given it.
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray
    given: np.ndarray


def perplexity_of_loss(loss: float) -> float:
    """Return the perplexity of a mean loss per token; infinity if it is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def confusion(labels: np.ndarray, predicted: np.ndarray, count: int) -> np.ndarray:
    """Count texts (count, count) by the id of their label and of the predicted one, both [N]."""
    pairs = np.bincount(np.asarray(labels) * count + np.asarray(predicted), minlength=count * count)
    return pairs.reshape(count, count)


def scores_of_labels(right: np.ndarray, support: np.ndarray, given: np.ndarray) -> LabelScores:
    """Score labels from counts (L,) of texts: those that both have a label and are given it, have it, are given it."""
    return LabelScores(_share(right, given), _share(right, support), _share(2 * right, support + given), support, given)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def scores_of_classes(matrix: np.ndarray) -> LabelScores:
    """Score classes (one per text) from :func:`confusion`."""
    return scores_of_labels(np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0))


def scores_of_several(labels: np.ndarray, given: np.ndarray) -> LabelScores:
    """Score labels (several per text) from 0 and 1 [N, L] of the data and of the model."""
    return scores_of_labels((labels & given).sum(axis=0), labels.sum(axis=0), given.sum(axis=0))


def of_texts(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute metrics to fit the labels: integers are classes, floats [N] regression, floats [N, L] several labels."""
    if labels.dtype.kind != "f":
        return classification(logits, labels)
    return regression(logits[:, 0], labels) if labels.ndim == 1 else multi_label(logits, labels)


def multi_label(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Score logits [N, L] against 0 and 1 [N, L]: :func:`labels_above` a probability of 0.5.

    Raises:
        ValueError: the shapes do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape:
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} should both be [N, L]")
    return labels_above(logits, labels, 0.0)


def labels_above(values: np.ndarray, labels: np.ndarray, threshold: float) -> dict[str, float]:
    """``micro_f1``, ``macro_f1`` and ``subset_accuracy`` (all labels of a text right), where a text is given the labels
    of which its values [N, L] are above a threshold, against 0 and 1 [N, L].

    ``macro_f1`` is the mean over the labels that occur, given or true.
    """
    given, true = (values > threshold).astype(np.int64), labels.astype(np.int64)
    scores = scores_of_several(true, given)
    occurring = (scores.support + scores.given) > 0
    if not occurring.any():
        return {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": float(len(labels) > 0)}
    of_all = scores_of_labels(*(np.array([count.sum()]) for count in (true & given, true, given)))
    return {
        "micro_f1": float(of_all.f1[0]),
        "macro_f1": float(np.mean(scores.f1[occurring])),
        "subset_accuracy": float(np.mean((true == given).all(axis=1))),
    }


def regression(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """``mse``, ``mae``, and the correlations ``pearson`` and ``spearman`` of numbers [N]: 0 where either is constant.

    Raises:
        ValueError: the shapes do not fit.
    """
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    if predicted.ndim != 1 or labels.shape != predicted.shape:
        raise ValueError(f"predictions {predicted.shape} and labels {labels.shape} should both be [N]")
    predicted, labels = predicted.astype(np.float64), labels.astype(np.float64)
    if not len(labels):
        return {"mse": 0.0, "mae": 0.0, "pearson": 0.0, "spearman": 0.0}
    errors = {"mse": mean_squared_error(labels, predicted), "mae": mean_absolute_error(labels, predicted)}
    vary = len(labels) > 1 and np.ptp(predicted) > 0 and np.ptp(labels) > 0
    correlations = {"pearson": pearsonr, "spearman": spearmanr}
    found = {name: float(call(labels, predicted)[0]) if vary else 0.0 for name, call in correlations.items()}
    return {**{name: float(value) for name, value in errors.items()}, **found}


def classification(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """``accuracy`` and ``macro_f1`` of logits [N, L] against labels [N]; both 0 where N is 0.

    ``macro_f1`` is the mean over the classes that occur, predicted or true: a class that is absent from a small split
    neither raises nor lowers it.

    Raises:
        ValueError: the shapes do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} should be [N, L] and [N]")
    if not len(labels):
        return {"accuracy": 0.0, "macro_f1": 0.0}
    predicted = np.argmax(logits, axis=-1)
    occurring, ids = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    scores = scores_of_classes(confusion(ids[: len(labels)], ids[len(labels) :], len(occurring)))
    return {"accuracy": float(np.mean(labels == predicted)), "macro_f1": float(np.mean(scores.f1))}
