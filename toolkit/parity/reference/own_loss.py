"""The reference's loss computed by its definition with NumPy, from R64's logits and the labels of the batch.

The port is not involved. A difference is a fault of the reference, such as labels that are shifted twice, a mean over
positions that should be ignored, or a wrong factor.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolkit.parity.exchange.results import OwnLoss
from toolkit.parity.measure.updates import IGNORED_LABEL
from toolkit.parity.reference.class_weights import weighted_loss

#: Largest allowed distance of the reference's loss from its definition, in units of float64 rounding (2^-53) of the
#: loss terms' magnitude.
UNITS = 300.0


class Loss(NamedTuple):
    """A loss computed by its definition, and the magnitude of its terms.

    Attributes:
        value: the loss.
        scale: mean magnitude of the numbers that are added to the loss. Its rounding is relative to this magnitude.
    """

    value: float
    scale: float


def check_loss(
    truth: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    head: str,
    model: Any,
    class_weights: Sequence[float] | None = None,
    smoothing: float = 0.0,
) -> OwnLoss:
    """Return the comparison of R64's loss with the loss that its logits and labels define.

    Args:
        truth: R64's ``logits`` (or ``start_logits``, ``end_logits``) and ``loss``.
        batch: the batch with its labels or positions.
        head: name of the head.
        model: the reference model, whose code shows the line of the loss.
        class_weights: weight of each class; None for equal weights.
        smoothing: share of each label that is spread over all classes.
    """
    definition = compute_loss(head, truth, batch, getattr(model, "config", None), class_weights, smoothing)
    loss = float(truth["loss"])
    is_without_labels = math.isnan(loss) and math.isnan(definition.value)  # all labels are ignored
    units = 0.0 if is_without_labels else abs(loss - definition.value) / (2.0**-53 * max(definition.scale, 2.0**-1022))
    place = locate_loss(model) if class_weights is None and not smoothing else _locate_function(weighted_loss)
    return OwnLoss(loss, definition.value, units, UNITS, place)


def compute_loss(
    head: str,
    scores: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    config: Any = None,
    class_weights: Sequence[float] | None = None,
    smoothing: float = 0.0,
) -> Loss:
    """Return the loss of a head, computed by its definition in NumPy.

    Args:
        head: name of the head.
        scores: ``logits`` (B, T, V) of a head that scores tokens, (B, K) of a classifier, or ``start_logits``,
            ``end_logits`` (B, T).
        batch: ``labels``, or ``start_positions`` and ``end_positions`` (B,).
        config: configuration of a classifier, with its ``problem_type``.
        class_weights: weight of each class of a classifier; None for equal weights.
        smoothing: share of each label that is spread over all classes.
    """
    if head == "question_answering":
        return _span_loss(scores, batch)
    logits, labels = scores["logits"], batch["labels"]
    if head == "causal_lm":  # each position predicts the next token
        return cross_entropy(logits[:, :-1], labels[:, 1:], IGNORED_LABEL)
    if head in ("masked_lm", "token_classification"):
        return cross_entropy(logits, labels, IGNORED_LABEL)
    kind = _problem_type(logits, labels, getattr(config, "problem_type", None))
    if kind == "regression":
        return _squared_error(logits, labels)
    if kind == "multi_label_classification":
        return _binary_cross_entropy(logits, labels, class_weights)
    return cross_entropy(logits, labels, IGNORED_LABEL, class_weights, smoothing)


def cross_entropy(
    logits: np.ndarray,
    labels: np.ndarray,
    ignore_index: int,
    class_weights: Sequence[float] | None = None,
    smoothing: float = 0.0,
) -> Loss:
    """Return the mean of log(sum(exp(x))) - x[label] over the rows whose label is not ``ignore_index``.

    With class weights w, the mean is sum(w[label] * row's loss) / sum(w[label]). With smoothing s, the result is (1 -
    s) times this mean, plus s times the mean over all classes as labels, each times its weight.

    Args:
        logits: scores of the classes, (..., classes).
        labels: class of each row, int64 (...).
        ignore_index: label of the rows that do not count.
        class_weights: weight of each class; None for equal weights.
        smoothing: share of each label that is spread over all classes.
    """
    rows, classes = logits.reshape(-1, logits.shape[-1]).astype(np.float64), labels.reshape(-1)
    rows, classes = rows[classes != ignore_index], classes[classes != ignore_index]
    if not len(rows):
        return Loss(math.nan, 1.0)
    largest = rows.max(-1, keepdims=True)
    normalizer = largest[:, 0] + np.log(np.exp(rows - largest).sum(-1))
    label_scores = rows[np.arange(len(rows)), classes]
    weights = None if class_weights is None else np.asarray(class_weights, np.float64)[classes]
    size = np.abs(normalizer) + np.abs(label_scores) + 1.0
    value = float(np.average(normalizer - label_scores, weights=weights))
    if smoothing:
        class_factors = np.ones(rows.shape[1]) if class_weights is None else np.asarray(class_weights, np.float64)
        spread = ((normalizer[:, None] - rows) * class_factors).mean(1).sum() / class_factors[classes].sum()
        value = (1 - smoothing) * value + smoothing * float(spread)
    return Loss(value, float(np.average(size, weights=weights)))


def _span_loss(scores: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> Loss:
    """Return the mean of the two cross entropies of an answer's start and end positions.

    A position beyond the text is not scored.
    """
    length = scores["start_logits"].shape[1]
    ends = [
        cross_entropy(scores[f"{end}_logits"], batch[f"{end}_positions"].reshape(-1).clip(0, length), length)
        for end in ("start", "end")
    ]
    return Loss((ends[0].value + ends[1].value) / 2, (ends[0].scale + ends[1].scale) / 2)


def _problem_type(logits: np.ndarray, labels: np.ndarray, problem_type: str | None) -> str:
    """Return the configuration's ``problem_type``, or, if it has none, the type that fits logits and labels."""
    if problem_type:
        return problem_type
    if logits.shape[-1] == 1:
        return "regression"
    is_integer = np.issubdtype(labels.dtype, np.integer)
    return "single_label_classification" if is_integer else "multi_label_classification"


def _squared_error(logits: np.ndarray, labels: np.ndarray) -> Loss:
    """Return the mean squared error of a regression."""
    outputs, targets = logits.reshape(-1).astype(np.float64), labels.reshape(-1).astype(np.float64)
    return Loss(float(((outputs - targets) ** 2).mean()), float(((np.abs(outputs) + np.abs(targets)) ** 2).mean()))


def _binary_cross_entropy(logits: np.ndarray, labels: np.ndarray, class_weights: Sequence[float] | None = None) -> Loss:
    """Return the mean binary cross entropy over all labels of all texts.

    Its terms are log(1 + exp(-x)) * w if a text has the label, and otherwise log(1 + exp(x)).

    Args:
        logits: scores x of the labels, (B, labels).
        labels: 1 for each label that a text has, otherwise 0, (B, labels).
        class_weights: weight w of each label; None for 1.
    """
    x, targets = logits.astype(np.float64), labels.astype(np.float64)
    weights = np.ones(x.shape[-1]) if class_weights is None else np.asarray(class_weights, np.float64)
    terms = weights * targets * np.logaddexp(0.0, -x) + (1 - targets) * np.logaddexp(0.0, x)
    return Loss(float(terms.mean()), float(((2 * np.abs(x) + 1.0) * np.maximum(weights, 1.0)).mean()))


def locate_loss(model: Any) -> str:
    """Return ``file.py:LINE`` of the function or line that computes a model's loss."""
    lines, first, file = _read_source(type(model).forward)
    index = next((number for number, line in enumerate(lines) if re.search(r"loss = (?!None)", line)), None)
    if index is None:
        return file
    if "self.loss_function" in lines[index]:
        return _locate_function(model.loss_function)
    return f"{file}:{first + index}"


def _locate_function(function: Any) -> str:
    """Return ``file.py:LINE`` of a function's first line."""
    _, first, file = _read_source(function)
    return f"{file}:{first}"


def _read_source(function: Any) -> tuple[list[str], int, str]:
    """Return the source lines of a function, the number of the first line, and the name of the file.

    A function without source gives no lines, 0 and the name of its module.
    """
    try:
        function = inspect.unwrap(function)
        lines, first = inspect.getsourcelines(function)
        return lines, first, Path(inspect.getfile(function)).name
    except (OSError, TypeError):
        return [], 0, getattr(function, "__module__", "the reference")
