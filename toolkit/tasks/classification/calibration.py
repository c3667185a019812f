"""How probabilities and labels are read off a classifier's logits: a temperature and, where a text may have several
labels, a threshold; both fitted to the validation split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from toolkit.tasks.metrics import labels_above

#: The least and the largest temperature.
TEMPERATURES = (0.05, 20.0)
#: If a text may have several labels, those above this probability are given, unless another threshold is fitted.
THRESHOLD = 0.5
#: Bins of probability.
BINS = 10


def probabilities(logits: np.ndarray, problem: str = "single_label", temperature: float = 1.0) -> np.ndarray:
    """Return float64 probabilities from logits [N, L], which are divided by the temperature: the softmax; with several
    labels per text, the sigmoid of each; in regression, the numbers themselves."""
    logits = logits.astype(np.float64)
    if problem == "regression":
        return logits
    logits = logits / temperature
    if problem == "multi_label":
        return 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid, without overflow
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def calibrated(outputs: Mapping[str, tuple[np.ndarray, ...]], problem: str) -> dict[str, Any]:
    """Return the ``temperature`` and, for several labels, the ``threshold`` that fit the validation split, and what
    they bring on each split: metric -> split -> before and after.

    Args:
        outputs: split -> logits [N, L] and labels, [N] or [N, L].
    """
    if problem == "regression" or not len(outputs["validation"][0]):
        return {}
    logits, labels = outputs["validation"]
    temperature = fitted_temperature(logits, labels)
    if problem == "multi_label":
        threshold = fitted_threshold(probabilities(logits, problem, temperature), labels)
        gains = {
            split: [
                labels_above(probabilities(logits, problem), labels, THRESHOLD)["micro_f1"],
                labels_above(probabilities(logits, problem, temperature), labels, threshold)["micro_f1"],
            ]
            for split, (logits, labels) in outputs.items()
        }
        return {"temperature": temperature, "threshold": threshold, "micro_f1": gains}
    errors = {
        split: [_error_of(probabilities(logits, problem, used), labels) for used in (1.0, temperature)]
        for split, (logits, labels) in outputs.items()
    }
    return {"temperature": temperature, "expected_calibration_error": errors}


def fitted_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature of the least cross-entropy (Guo et al. 2017, section 4.2).

    The targets of N texts are (N + 1) / (N + 2) and what is left, as in Platt (1999, section 2.2): where all of them
    are right, certainty would fit best.

    Args:
        logits: (N, L).
        labels: (N,) ids, or (N, L) of 0 and 1.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits, unsure = logits.astype(np.float64), 1 / (len(logits) + 2)
    if labels.ndim == 2:
        targets = np.where(labels > 0, 1 - unsure, unsure)

        def loss(exponent: float) -> float:
            divided = logits * np.exp(-exponent)
            return float((np.logaddexp(0, divided) - targets * divided).mean())
    else:
        targets = np.full(logits.shape, unsure / max(logits.shape[1] - 1, 1))
        targets[np.arange(len(labels)), labels] = 1 - unsure

        def loss(exponent: float) -> float:
            return float(-(targets * log_softmax(logits * np.exp(-exponent), axis=1)).sum(axis=1).mean())

    return float(np.exp(minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded").x))


def fitted_threshold(shares: np.ndarray, labels: np.ndarray) -> float:
    """Return the threshold between 0 and 1 of the best micro F1.

    Args:
        shares: (N, L) probabilities.
        labels: (N, L) of 0 and 1.
    """
    order = np.argsort(-shares, axis=None)
    ranked = shares.flat[order]
    right = np.cumsum(labels.flat[order] > 0)
    f1 = 2 * right / (np.arange(1, len(order) + 1) + max(right[-1], 1))
    last = np.append(ranked[1:] < ranked[:-1], True)  # equal ones are all above a threshold, or none
    best = int(np.argmax(np.where(last, f1, -1.0)))
    below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float((ranked[best] + below) / 2)


def expected_calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """Return the mean distance of probability and accuracy over :data:`BINS` equal bins of probability, each weighted
    by its texts (Guo et al. 2017, section 2).

    Args:
        probability: (N,) of the predicted labels.
        right: (N,) whether each is the text's.
    """
    places = bins(probability)
    apart = [abs(probability[places == one].sum() - right[places == one].sum()) for one in range(BINS)]
    return float(sum(apart) / len(probability))


def bins(probability: np.ndarray) -> np.ndarray:
    """Return the bin of each probability, from 0."""
    return np.minimum((probability * BINS).astype(int), BINS - 1)


def _error_of(shares: np.ndarray, labels: np.ndarray) -> float:
    return expected_calibration_error(shares.max(axis=1), shares.argmax(axis=1) == labels)


def described(calibration: Mapping[str, Any]) -> str:
    """Say in a line what was fitted, and what it brings on the last split; empty where nothing was."""
    if not calibration:
        return ""
    fitted = f"logits are divided by {calibration['temperature']:.3g}"
    if "threshold" in calibration:
        metric, name = "micro_f1", "micro F1"
        fitted += f", labels given above {calibration['threshold']:.2g}"
    else:
        metric, name = "expected_calibration_error", "expected calibration error"
    split, (before, after) = list(calibration[metric].items())[-1]
    return f"{fitted}, as fits validation best: {name} of {split} {after:.3f}, was {before:.3f}"


def logits_note(calibration: Mapping[str, Any]) -> str:
    """Say in a line that saved weights give other probabilities than `toolkit predict`; empty if they do not."""
    if "temperature" not in calibration:
        return ""
    temperature = f"{calibration['temperature']:.4g}"
    return (
        f"the weights give the logits as they were trained; toolkit predict divides them by {temperature}, which fits "
        "validation best, before it makes probabilities"
    )
