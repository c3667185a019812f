"""Test that metrics equal counts by hand and the metrics of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.tasks import metrics


def test_accuracy_and_f1_equal_counts_by_hand():
    logits = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 9.0]])
    scores = metrics.classification(logits, np.array([0, 1, 1, 1]))
    assert scores["accuracy"] == 0.75
    assert scores["macro_f1"] == pytest.approx(
        (2 / 3 + 4 / 5) / 2
    )  # class 0: 1 hit, 1 false; class 1: 2 hits, 1 missed


def test_a_class_that_is_neither_predicted_nor_true_does_not_change_macro_f1():
    logits = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 9.0]])
    labels = np.array([0, 1, 1, 1])
    wider = np.pad(logits, [(0, 0), (0, 5)], constant_values=-1.0)
    assert metrics.classification(wider, labels) == metrics.classification(logits, labels)


def test_metrics_of_no_examples_are_zero_without_a_warning():
    assert metrics.classification(np.zeros((0, 3)), np.zeros(0, dtype=np.int64)) == {"accuracy": 0.0, "macro_f1": 0.0}


def test_mismatched_shapes_are_refused():
    with pytest.raises(ValueError, match=r"should be \[N, L\] and \[N\]"):
        metrics.classification(np.zeros((4, 2)), np.zeros(3))


@pytest.mark.parametrize("seed", range(20))
def test_metrics_equal_those_of_scikit_learn(seed):
    """Compare to the last digit, so that a page and a table never differ from the metrics of a user."""
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

    draw = np.random.default_rng(seed)
    count, rows = int(draw.integers(2, 30)), int(draw.integers(1, 200))
    labels, logits = draw.integers(0, count, rows), draw.standard_normal((rows, count))
    predicted_labels = logits.argmax(axis=1)
    expected_scores = {
        "accuracy": accuracy_score(labels, predicted_labels),
        "macro_f1": f1_score(labels, predicted_labels, average="macro", zero_division=0),
    }
    assert metrics.classification(logits, labels) == expected_scores
    matrix = metrics.confusion(labels, predicted_labels, count)
    assert np.array_equal(matrix, confusion_matrix(labels, predicted_labels, labels=np.arange(count)))
    expected_columns = precision_recall_fscore_support(
        labels, predicted_labels, labels=np.arange(count), zero_division=0
    )
    for column, expected_column in zip(metrics.scores_of_classes(matrix), expected_columns, strict=False):
        assert np.array_equal(column, expected_column)

    several = draw.integers(0, 2, (rows, count)) * (draw.random(count) < 0.7)  # some labels occur nowhere
    predicted_sets = (logits > 0).astype(np.int64)
    occurring_labels = np.flatnonzero((several | predicted_sets).any(axis=0))
    expected_f1 = f1_score(several, predicted_sets, labels=occurring_labels, average=None, zero_division=0)
    assert metrics.multi_label(logits, several) == {
        "micro_f1": f1_score(several, predicted_sets, average="micro", zero_division=0),
        "macro_f1": np.mean(expected_f1),
        "subset_accuracy": accuracy_score(several, predicted_sets),
    }
    expected_columns = precision_recall_fscore_support(several, predicted_sets, average=None, zero_division=0)
    for column, expected_column in zip(
        metrics.scores_of_several(several, predicted_sets), expected_columns, strict=False
    ):
        assert np.array_equal(column, expected_column)
