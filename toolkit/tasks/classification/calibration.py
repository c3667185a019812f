"""Derive probabilities and labels from a classifier's logits, with a temperature and a threshold.

The threshold is used if a text may have several labels. Both are fitted to the validation split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from toolkit.tasks.metrics import threshold_metrics

#: Minimum and maximum of the temperature.
TEMPERATURES = (0.05, 20.0)
#: Default threshold: with several labels per text, the labels with a higher probability are predicted.
THRESHOLD = 0.5
#: Number of equal bins of the interval [0, 1] of probabilities.
BINS = 10


def probabilities(logits: np.ndarray, problem: str = "single_label", temperature: float = 1.0) -> np.ndarray:
    """Return the probabilities of logits (N, L), in float64: the softmax of the logits divided by the temperature.

    With several labels per text, this is the sigmoid of each. In regression, it is the unchanged numbers.

    Args:
        logits: (N, L).
        problem: ``data.problem_type``.
        temperature: divisor of the logits.
    """
    logits = logits.astype(np.float64)
    if problem == "regression":
        return logits
    logits = logits / temperature
    if problem == "multi_label":
        return 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid, without overflow
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def calibrate_outputs(outputs: Mapping[str, tuple[np.ndarray, ...]], problem: str) -> dict[str, Any]:
    """Fit the ``temperature`` and, with several labels per text, the ``threshold`` to the validation split.

    Args:
        outputs: logits (N, L) and labels, (N,) or (N, L), by split.
        problem: ``data.problem_type``.

    Returns:
        The fitted values, and a metric of each split before and after: metric -> split -> [before, after]. Empty in
            regression, or if the validation split is empty.
    """
    if problem == "regression" or not len(outputs["validation"][0]):
        return {}
    logits, labels = outputs["validation"]
    temperature = fit_temperature(logits, labels)
    if problem == "multi_label":
        threshold = fit_threshold(probabilities(logits, problem, temperature), labels)
        gains = {
            split_name: [
                threshold_metrics(probabilities(logits, problem), labels, THRESHOLD)["micro_f1"],
                threshold_metrics(probabilities(logits, problem, temperature), labels, threshold)["micro_f1"],
            ]
            for split_name, (logits, labels) in outputs.items()
        }
        return {"temperature": temperature, "threshold": threshold, "micro_f1": gains}
    errors = {
        split_name: [
            _calibration_error(probabilities(logits, problem, divisor), labels) for divisor in (1.0, temperature)
        ]
        for split_name, (logits, labels) in outputs.items()
    }
    return {"temperature": temperature, "expected_calibration_error": errors}


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature with the lowest cross-entropy (Guo et al. 2017, section 4.2).

    The target of the true label is (N + 1) / (N + 2) for N texts, as in Platt (1999, section 2.2). With a target of 1,
    a temperature near 0 would fit best if every prediction is correct.

    Args:
        logits: (N, L).
        labels: ids, (N,), or 1 for each label of a text and 0 otherwise, (N, L).
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits, noise = logits.astype(np.float64), 1 / (len(logits) + 2)
    if labels.ndim == 2:
        targets = np.where(labels > 0, 1 - noise, noise)

        def loss(exponent: float) -> float:
            scaled_logits = logits * np.exp(-exponent)
            return float((np.logaddexp(0, scaled_logits) - targets * scaled_logits).mean())
    else:
        targets = np.full(logits.shape, noise / max(logits.shape[1] - 1, 1))
        targets[np.arange(len(labels)), labels] = 1 - noise

        def loss(exponent: float) -> float:
            return float(-(targets * log_softmax(logits * np.exp(-exponent), axis=1)).sum(axis=1).mean())

    return float(np.exp(minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded").x))


def fit_threshold(label_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the threshold between 0 and 1 with the highest micro F1.

    Args:
        label_probabilities: (N, L).
        labels: 1 for each label of a text and 0 otherwise, (N, L).
    """
    order = np.argsort(-label_probabilities, axis=None)
    sorted_probabilities = label_probabilities.flat[order]
    num_correct = np.cumsum(labels.flat[order] > 0)
    f1 = 2 * num_correct / (np.arange(1, len(order) + 1) + max(num_correct[-1], 1))
    is_last_of_equals = np.append(
        sorted_probabilities[1:] < sorted_probabilities[:-1], True
    )  # a threshold cannot separate equal values
    best_index = int(np.argmax(np.where(is_last_of_equals, f1, -1.0)))
    next_probability = sorted_probabilities[best_index + 1] if best_index + 1 < len(sorted_probabilities) else 0.0
    return float((sorted_probabilities[best_index] + next_probability) / 2)


def expected_calibration_error(probability: np.ndarray, is_correct: np.ndarray) -> float:
    """Return the expected calibration error over :data:`BINS` equal bins of probability (Guo et al. 2017, section 2).

    It is the mean distance of probability and accuracy in a bin, weighted by the number of texts in the bin.

    Args:
        probability: probability of each predicted label, (N,).
        is_correct: whether each prediction is correct, (N,).
    """
    bin_indices = bins_of(probability)
    distances = [
        abs(probability[bin_indices == index].sum() - is_correct[bin_indices == index].sum()) for index in range(BINS)
    ]
    return float(sum(distances) / len(probability))


def bins_of(probability: np.ndarray) -> np.ndarray:
    """Return the index of the bin of each probability."""
    return np.minimum((probability * BINS).astype(int), BINS - 1)


def _calibration_error(label_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the expected calibration error of the most probable labels.

    Args:
        label_probabilities: probability of each label, (N, labels).
        labels: correct labels, (N,).
    """
    return expected_calibration_error(label_probabilities.max(axis=1), label_probabilities.argmax(axis=1) == labels)


def describe_calibration(calibration: Mapping[str, Any]) -> str:
    """Return a line about the fitted values and their effect on the last split; empty if nothing was fitted."""
    if not calibration:
        return ""
    description = f"logits are divided by {calibration['temperature']:.3g}"
    if "threshold" in calibration:
        metric, name = "micro_f1", "micro F1"
        description += f", labels given above {calibration['threshold']:.2g}"
    else:
        metric, name = "expected_calibration_error", "expected calibration error"
    split_name, (before, after) = list(calibration[metric].items())[-1]
    return f"{description}, as fits validation best: {name} of {split_name} {after:.3f}, was {before:.3f}"


def logits_note(calibration: Mapping[str, Any]) -> str:
    """Return a note that `toolkit predict` divides the logits by a temperature; empty without a temperature."""
    if "temperature" not in calibration:
        return ""
    temperature = f"{calibration['temperature']:.4g}"
    return (
        f"the weights give the logits as they were trained; toolkit predict divides them by {temperature}, which fits "
        "validation best, before it makes probabilities"
    )
