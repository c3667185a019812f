"""Temperatures and thresholds are those that fit the validation split best, and predictions are made with them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score, log_loss

from toolkit.tasks.classification.calibration import (
    calibrated,
    described,
    expected_calibration_error,
    fitted_temperature,
    fitted_threshold,
    probabilities,
)


def drawn(sureness: float, count: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are ``sureness`` times those from whose softmax the labels are drawn."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(count, 4)) * 2
    shares = probabilities(logits)
    labels = np.array([random.choice(4, p=share) for share in shares])
    return (logits * sureness).astype(np.float32), labels


@pytest.mark.parametrize("sureness", [0.25, 1.0, 3.0])
def test_the_temperature_is_that_of_the_least_loss(sureness):
    logits, labels = drawn(sureness)
    temperature = fitted_temperature(logits, labels)
    assert temperature == pytest.approx(sureness, rel=0.1)
    least = log_loss(labels, probabilities(logits, temperature=temperature))
    for other in (0.97, 1.03):
        assert least < log_loss(labels, probabilities(logits, temperature=temperature * other))
    found = calibrated({"validation": (logits, labels)}, "single_label")
    before, after = found["expected_calibration_error"]["validation"]
    assert after < 0.02 and (after < before / 5 or sureness == 1)


def test_where_every_text_is_right_the_probability_stays_that_of_so_many_texts():
    labels = np.arange(100) % 2
    logits = np.where(labels[:, None] == np.arange(2), 30.0, -30.0)
    temperature = fitted_temperature(logits, labels)
    assert probabilities(logits, temperature=temperature).max(axis=1) == pytest.approx(101 / 102, abs=1e-3)


def test_several_labels_have_a_temperature_too():
    logits, _ = drawn(1.0)
    several = (np.random.default_rng(1).random(logits.shape) < probabilities(logits, "multi_label")).astype(np.float32)
    assert fitted_temperature(logits * 3, several) == pytest.approx(3, rel=0.1)


def test_the_threshold_is_that_of_the_best_micro_f1():
    random = np.random.default_rng(2)
    shares = np.round(random.random((300, 5)) ** 2, 2)  # many are equal
    labels = (random.random((300, 5)) < shares).astype(np.int64)

    def micro_f1(threshold: float) -> float:
        return f1_score(labels, shares > threshold, average="micro")

    threshold = fitted_threshold(shares, labels)
    assert micro_f1(threshold) == max(map(micro_f1, np.arange(-0.005, 1, 0.01)))
    assert 0 <= fitted_threshold(shares, np.zeros_like(labels)) <= 1


def test_the_calibration_error_is_the_distance_of_probability_and_accuracy():
    probability, right = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.65]), np.array([1, 1, 0, 0, 1, 0], bool)
    assert expected_calibration_error(probability, right) == pytest.approx((4 * 0.45 + 0.45 + 0.65) / 6)
    assert expected_calibration_error(np.ones(4), np.ones(4, bool)) == 0


def test_what_was_fitted_is_said_in_a_line():
    outputs = {"validation": drawn(3.0), "test": drawn(3.0)}
    said = described(calibrated(outputs, "single_label"))
    assert said.startswith("logits are divided by ") and "expected calibration error of test 0.0" in said
    assert calibrated(outputs, "regression") == {} and described({}) == ""
