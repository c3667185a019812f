"""Classification metrics, by scikit-learn, and which metrics of all tasks are counts."""

from __future__ import annotations

import numpy as np

#: A label that the loss leaves out, by the convention of both frameworks' cross entropy.
IGNORED_LABEL = -100

#: Metrics that say of how many examples others are: shown without decimals, and no score of a model.
COUNTS = ("HasAns_total", "NoAns_total")


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
