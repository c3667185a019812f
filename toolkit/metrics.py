"""Classification metrics, by scikit-learn, and which metrics of all tasks are counts."""

from __future__ import annotations

import numpy as np

#: A label that the loss leaves out, by the convention of both frameworks' cross entropy.
IGNORED_LABEL = -100

#: Metrics that say of how many examples others are: shown without decimals, and no score of a model.
COUNTS = ("HasAns_total", "NoAns_total")


def of_texts(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The metrics of what labels are: integers classes, numbers [N] those of regression, [N, L] several labels."""
    if labels.dtype.kind != "f":
        return classification(logits, labels)
    return regression(logits[:, 0], labels) if labels.ndim == 1 else multi_label(logits, labels)


def multi_label(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """``micro_f1``, ``macro_f1`` and ``subset_accuracy`` (all labels of a text right) of logits [N, L] against 0 and 1
    [N, L]; a label is given where its probability is above 0.5.

    ``macro_f1`` is the mean over the labels that occur, given or true.

    Raises:
        ValueError: the shapes do not fit.
    """
    from sklearn.metrics import accuracy_score, f1_score

    if logits.ndim != 2 or labels.shape != logits.shape:
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} should both be [N, L]")
    given, true = (logits > 0).astype(np.int64), labels.astype(np.int64)
    occurring = np.flatnonzero((given | true).any(axis=0))
    if not len(occurring):
        return {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": float(len(labels) > 0)}
    each = f1_score(true, given, labels=occurring, average=None, zero_division=0)
    return {
        "micro_f1": float(f1_score(true, given, average="micro", zero_division=0)),
        "macro_f1": float(np.mean(each)),
        "subset_accuracy": float(accuracy_score(true, given)),
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
    from sklearn.metrics import accuracy_score, f1_score

    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(f"logits {logits.shape} and labels {labels.shape} should be [N, L] and [N]")
    if not len(labels):
        return {"accuracy": 0.0, "macro_f1": 0.0}
    predictions = np.argmax(logits, axis=-1)
    macro_f1 = f1_score(labels, predictions, average="macro", zero_division=0)
    return {"accuracy": float(accuracy_score(labels, predictions)), "macro_f1": float(macro_f1)}
