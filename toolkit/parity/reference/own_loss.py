"""The reference's loss recomputed by its definition, from R64's own logits and the batch's labels, by NumPy alone.

The port is not involved. Any difference is the reference's own fault: labels shifted twice, a mean over positions that
should be ignored, a factor too many.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolkit.parity.job.results import OwnLoss
from toolkit.parity.reference.class_weights import weighted_loss

#: Bound on the distance of the reference's loss from its definition, in units of float64 rounding of its terms.
UNITS = 300.0
IGNORED = -100


class Loss(NamedTuple):
    """A loss, and the size of the terms added and subtracted for it, to which its rounding is relative."""

    value: float
    scale: float


def check(
    truth: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    head: str,
    model: Any,
    class_weights: Sequence[float] | None = None,
    smoothing: float = 0.0,
) -> OwnLoss:
    """Compare R64's loss with its definition.

    Args:
        truth: R64's ``logits`` (or ``start_logits``, ``end_logits``) and ``loss``.
        batch: with its labels or positions.
        model: the reference, to tell where it computes its loss.
        class_weights: by class, if its loss has weights.
        smoothing: share of each label that is spread over all.
    """
    defined = of(head, truth, batch, getattr(model, "config", None), class_weights, smoothing)
    given = float(truth["loss"])
    both_nothing = math.isnan(given) and math.isnan(defined.value)  # no label is left to score
    units = 0.0 if both_nothing else abs(given - defined.value) / (2.0**-53 * max(defined.scale, 2.0**-1022))
    where = place(model) if class_weights is None and not smoothing else _line(weighted_loss)
    return OwnLoss(given, defined.value, units, UNITS, where)


def of(
    head: str,
    scores: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    config: Any = None,
    class_weights: Sequence[float] | None = None,
    smoothing: float = 0.0,
) -> Loss:
    """The loss that a head is defined to have.

    Args:
        scores: ``logits`` (B, T, V) of a head that scores tokens, (B, K) of a classifier, or ``start_logits``,
            ``end_logits`` (B, T).
        batch: ``labels``, or ``start_positions`` and ``end_positions`` (B,).
        config: for a classifier's ``problem_type`` and ``num_labels``.
        class_weights: of a classifier, by class; None for all alike.
        smoothing: as of :func:`check`.
    """
    if head == "question_answering":
        return _span(scores, batch)
    logits, labels = scores["logits"], batch["labels"]
    if head == "causal_lm":  # each position predicts the next token
        return cross_entropy(logits[:, :-1], labels[:, 1:], IGNORED)
    if head in ("masked_lm", "token_classification"):
        return cross_entropy(logits, labels, IGNORED)
    kind = _problem(logits, labels, getattr(config, "problem_type", None))
    if kind == "regression":
        return _squared(logits, labels)
    if kind == "multi_label_classification":
        return _binary(logits, labels, class_weights)
    return cross_entropy(logits, labels, IGNORED, class_weights, smoothing)


def cross_entropy(
    logits: np.ndarray,
    labels: np.ndarray,
    ignored: int,
    class_weights: Sequence[float] | None = None,
    smoothing: float = 0.0,
) -> Loss:
    """Mean of log(sum(exp(x))) - x[label] over the rows whose label is not ``ignored``; with class weights w,
    sum(w[label] * row's loss) / sum(w[label]). With smoothing s, (1 - s) of that and s of the same with each class in
    the place of the label, averaged over the classes, each times its own weight."""
    rows, chosen = logits.reshape(-1, logits.shape[-1]).astype(np.float64), labels.reshape(-1)
    rows, chosen = rows[chosen != ignored], chosen[chosen != ignored]
    if not len(rows):
        return Loss(math.nan, 1.0)
    largest = rows.max(-1, keepdims=True)
    normaliser = largest[:, 0] + np.log(np.exp(rows - largest).sum(-1))
    picked = rows[np.arange(len(rows)), chosen]
    weights = None if class_weights is None else np.asarray(class_weights, np.float64)[chosen]
    size = np.abs(normaliser) + np.abs(picked) + 1.0
    value = float(np.average(normaliser - picked, weights=weights))
    if smoothing:
        of_classes = np.ones(rows.shape[1]) if class_weights is None else np.asarray(class_weights, np.float64)
        spread = ((normaliser[:, None] - rows) * of_classes).mean(1).sum() / of_classes[chosen].sum()
        value = (1 - smoothing) * value + smoothing * float(spread)
    return Loss(value, float(np.average(size, weights=weights)))


def _span(scores: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> Loss:
    """The mean of the two positions' cross entropies; a position beyond the text is not scored."""
    length = scores["start_logits"].shape[1]
    ends = [
        cross_entropy(scores[f"{end}_logits"], batch[f"{end}_positions"].reshape(-1).clip(0, length), length)
        for end in ("start", "end")
    ]
    return Loss((ends[0].value + ends[1].value) / 2, (ends[0].scale + ends[1].scale) / 2)


def _problem(logits: np.ndarray, labels: np.ndarray, named: str | None) -> str:
    """One of the three kinds of classification: the configuration's, else the one that the labels fit."""
    if named:
        return named
    if logits.shape[-1] == 1:
        return "regression"
    whole = np.issubdtype(labels.dtype, np.integer)
    return "single_label_classification" if whole else "multi_label_classification"


def _squared(logits: np.ndarray, labels: np.ndarray) -> Loss:
    given, wanted = logits.reshape(-1).astype(np.float64), labels.reshape(-1).astype(np.float64)
    return Loss(float(((given - wanted) ** 2).mean()), float(((np.abs(given) + np.abs(wanted)) ** 2).mean()))


def _binary(logits: np.ndarray, labels: np.ndarray, class_weights: Sequence[float] | None = None) -> Loss:
    """The mean over all labels of log(1 + exp(-x)) * w where a text has the label, of log(1 + exp(x)) where not."""
    x, wanted = logits.astype(np.float64), labels.astype(np.float64)
    weights = np.ones(x.shape[-1]) if class_weights is None else np.asarray(class_weights, np.float64)
    terms = weights * wanted * np.logaddexp(0.0, -x) + (1 - wanted) * np.logaddexp(0.0, x)
    return Loss(float(terms.mean()), float(((2 * np.abs(x) + 1.0) * np.maximum(weights, 1.0)).mean()))


def place(model: Any) -> str:
    """``file.py:LINE`` of the function that computes the model's loss, or of the line that does."""
    lines, first, file = _source(type(model).forward)
    found = next((index for index, line in enumerate(lines) if re.search(r"loss = (?!None)", line)), None)
    if found is None:
        return file
    if "self.loss_function" in lines[found]:
        return _line(model.loss_function)
    return f"{file}:{first + found}"


def _line(function: Any) -> str:
    """``file.py:LINE`` of a function."""
    _, first, file = _source(function)
    return f"{file}:{first}"


def _source(function: Any) -> tuple[list[str], int, str]:
    """A function's lines, its first line's number and its file's name; none where there is no source."""
    try:
        function = inspect.unwrap(function)
        lines, first = inspect.getsourcelines(function)
        return lines, first, Path(inspect.getfile(function)).name
    except (OSError, TypeError):
        return [], 0, getattr(function, "__module__", "the reference")
