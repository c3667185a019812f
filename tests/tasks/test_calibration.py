"""Test that temperatures and thresholds fit the validation split best, and that predictions use them."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import f1_score, log_loss

from toolkit.tasks.classification import task as classification
from toolkit.tasks.classification.calibration import (
    calibrate_outputs,
    describe_calibration,
    expected_calibration_error,
    fit_temperature,
    fit_threshold,
    probabilities,
)
from toolkit.tasks.classification.windows import split_evenly


def draw_logits(sureness: float, count: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and labels; the labels follow the softmax of the logits divided by ``sureness``."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(count, 4)) * 2
    shares = probabilities(logits)
    labels = np.array([random.choice(4, p=share) for share in shares])
    return (logits * sureness).astype(np.float32), labels


@pytest.mark.parametrize("sureness", [0.25, 1.0, 3.0])
def test_the_temperature_minimizes_the_loss(sureness):
    logits, labels = draw_logits(sureness)
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(sureness, rel=0.1)
    least = log_loss(labels, probabilities(logits, temperature=temperature))
    for factor in (0.97, 1.03):
        assert least < log_loss(labels, probabilities(logits, temperature=temperature * factor))
    calibration = calibrate_outputs({"validation": (logits, labels)}, "single_label")
    initial_error, calibrated_error = calibration["expected_calibration_error"]["validation"]
    assert calibrated_error < 0.02 and (calibrated_error < initial_error / 5 or sureness == 1)


def test_if_every_text_is_correct_the_probability_reflects_the_number_of_texts():
    labels = np.arange(100) % 2
    logits = np.where(labels[:, None] == np.arange(2), 30.0, -30.0)
    temperature = fit_temperature(logits, labels)
    assert probabilities(logits, temperature=temperature).max(axis=1) == pytest.approx(101 / 102, abs=1e-3)


def test_several_labels_have_a_temperature_too():
    logits, _ = draw_logits(1.0)
    several = (np.random.default_rng(1).random(logits.shape) < probabilities(logits, "multi_label")).astype(np.float32)
    assert fit_temperature(logits * 3, several) == pytest.approx(3, rel=0.1)


def test_the_threshold_maximizes_the_micro_f1():
    random = np.random.default_rng(2)
    shares = np.round(random.random((300, 5)) ** 2, 2)  # many are equal
    labels = (random.random((300, 5)) < shares).astype(np.int64)

    def micro_f1(threshold: float) -> float:
        return f1_score(labels, shares > threshold, average="micro")

    threshold = fit_threshold(shares, labels)
    assert micro_f1(threshold) == max(map(micro_f1, np.arange(-0.005, 1, 0.01)))
    assert 0 <= fit_threshold(shares, np.zeros_like(labels)) <= 1


def test_the_calibration_error_is_the_distance_of_probability_and_accuracy():
    probability, is_correct = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.65]), np.array([1, 1, 0, 0, 1, 0], bool)
    assert expected_calibration_error(probability, is_correct) == pytest.approx((4 * 0.45 + 0.45 + 0.65) / 6)
    assert expected_calibration_error(np.ones(4), np.ones(4, bool)) == 0


def test_the_calibration_is_described_in_one_line():
    outputs = {"validation": draw_logits(3.0), "test": draw_logits(3.0)}
    description = describe_calibration(calibrate_outputs(outputs, "single_label"))
    assert description.startswith("logits are divided by ") and "expected calibration error of test 0.0" in description
    assert calibrate_outputs(outputs, "regression") == {} and describe_calibration({}) == ""


def draw_multi_label_logits(sureness: float, seed: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and labels of several labels per text; some labels are true at random."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(200, 3)).astype(np.float32)
    return logits * sureness, (random.random((200, 3)) < rate * probabilities(logits, "multi_label")).astype(np.float32)


@pytest.mark.parametrize("order", [("validation", "test"), ("test", "validation")])
def test_both_are_fitted_on_the_validation_split_and_measured_on_each(order):
    outputs = {"validation": draw_multi_label_logits(3.0, 0, 1.0), "test": draw_multi_label_logits(0.4, 1, 0.3)}
    calibration = calibrate_outputs({split_name: outputs[split_name] for split_name in order}, "multi_label")
    temperature = fit_temperature(*outputs["validation"])
    threshold = fit_threshold(
        probabilities(outputs["validation"][0], "multi_label", temperature), outputs["validation"][1]
    )
    assert (calibration["temperature"], calibration["threshold"]) == (temperature, threshold)
    for split_name, (logits, labels) in outputs.items():
        initial_f1 = f1_score(labels, logits > 0, average="micro")
        calibrated_f1 = f1_score(labels, probabilities(logits, "multi_label", temperature) > threshold, average="micro")
        assert calibration["micro_f1"][split_name] == pytest.approx([initial_f1, calibrated_f1])
    single = {"validation": draw_logits(3.0, 300), "test": draw_logits(0.4, 300)}
    calibration = calibrate_outputs({split_name: single[split_name] for split_name in order}, "single_label")
    assert calibration["temperature"] == fit_temperature(*single["validation"])
    errors = {split_name: len(pair) for split_name, pair in calibration["expected_calibration_error"].items()}
    assert errors == {"validation": 2, "test": 2}


def test_a_run_without_validation_texts_has_nothing_to_fit():
    empty = np.zeros((0, 3), np.float32), np.zeros(0, np.int64)
    assert calibrate_outputs({"validation": empty, "test": draw_logits(3.0, 300)}, "single_label") == {}


# -- predictions ------------------------------------------------------------------------------------------------------

TEMPERATURE, THRESHOLD = 2.0, 0.7
LOGITS = np.array([4.0, 1.0, -3.0])
TEXT = "a b c d e f g"
NAMES = ["x", "y", "z"]


class Words:
    """A tokenizer whose ids are the code points of letters."""

    def encode_prefixes(self, texts: list[str], count: int) -> list[list[int]]:
        return [self._ids(text)[:count] for text in texts]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> list[int]:
        return [ord(word) for word in text.split()]


def run_of(problem: str, long_texts: str = "cut") -> SimpleNamespace:
    """Return a calibrated run whose texts have at most 4 tokens and are padded to 6."""
    data = SimpleNamespace(problem_type=problem, max_length=4, long_texts=long_texts, text_columns=["text"])
    recipe = SimpleNamespace(data=data, train=SimpleNamespace(eval_batch_size=2))
    calibration = {"temperature": TEMPERATURE, "threshold": THRESHOLD}
    fitted_parts = {"length": 6, "calibration": calibration, "baseline": None}
    return SimpleNamespace(recipe=recipe, tokenizer=Words(), label_names=NAMES, **fitted_parts)


@pytest.fixture
def read(monkeypatch) -> list[list[int]]:
    """Return the rows of tokens that the model reads."""
    rows: list[list[int]] = []

    def logits(run: object, batch: list[list[int]]) -> np.ndarray:
        rows.extend(batch)
        return np.tile(LOGITS, (len(batch), 1))

    monkeypatch.setattr(classification, "_logits", logits)
    return rows


def test_labels_use_the_fitted_threshold_and_temperature(read):
    sigmoid = 1 / (1 + np.exp(-LOGITS / TEMPERATURE))  # 0.88, 0.62, 0.18: above a half are two
    run = run_of("multi_label")
    (prediction,) = classification.predict(run, Console(file=io.StringIO()), [TEXT])
    assert prediction.probabilities == pytest.approx(sigmoid)
    assert (prediction.label, prediction.probability) == ('["x"]', pytest.approx(sigmoid[0]))
    labeled_rows = classification.label_rows(run, {"text": [TEXT]}, lambda count: None)
    assert [column[0] for column in labeled_rows.columns] == ['["x"]', *map(pytest.approx, sigmoid)]
    run.calibration = {}
    assert classification.classify(run, [TEXT])[0].label == '["x", "y"]'


def test_the_probability_of_a_label_uses_the_fitted_temperature(read):
    powers = np.exp(LOGITS / TEMPERATURE)
    (prediction,) = classification.classify(run_of("single_label"), [TEXT])
    assert (prediction.label, prediction.probability) == ("x", pytest.approx(powers[0] / powers.sum()))


def test_a_number_is_not_divided(read):
    (prediction,) = classification.classify(run_of("regression"), [TEXT])
    assert prediction.probabilities[0] == LOGITS[0] and prediction.label == "4"


@pytest.mark.parametrize("words", [3, 4, 5, 7])
def test_a_text_is_cut_to_the_training_length_and_not_to_the_padded_length(read, words):
    text = " ".join(TEXT.split()[:words])
    (prediction,) = classification.classify(run_of("single_label"), [text])
    assert read == [[ord(word) for word in text.split()][:4]] and prediction.is_truncated == (words > 4)


def test_a_long_text_is_read_in_the_windows_of_training(read):
    (prediction,) = classification.classify(run_of("single_label", "windows"), [TEXT])
    assert sorted(read) == split_evenly([ord(word) for word in TEXT.split()], 4) and not prediction.is_truncated
