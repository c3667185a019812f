"""Metrics agree with what a person counts."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.tasks import metrics


def test_accuracy_and_f1_are_what_a_person_counts():
    logits = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 9.0]])
    found = metrics.classification(logits, np.array([0, 1, 1, 1]))
    assert found["accuracy"] == 0.75
    assert found["macro_f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)  # class 0: 1 hit, 1 false; class 1: 2 hits, 1 missed


def test_a_class_that_is_neither_predicted_nor_true_does_not_change_macro_f1():
    logits = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 9.0]])
    labels = np.array([0, 1, 1, 1])
    wider = np.pad(logits, [(0, 0), (0, 5)], constant_values=-1.0)
    assert metrics.classification(wider, labels) == metrics.classification(logits, labels)


def test_nothing_to_measure_is_zero_and_not_a_warning():
    assert metrics.classification(np.zeros((0, 3)), np.zeros(0, dtype=np.int64)) == {"accuracy": 0.0, "macro_f1": 0.0}


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"should be \[N, L\] and \[N\]"):
        metrics.classification(np.zeros((4, 2)), np.zeros(3))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_counted_is_what_scikit_learn_counts(seed):
    """To the last digit, so that a page and a table of metrics never differ from what a user computes."""
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

    draw = np.random.default_rng(seed)
    count, rows = int(draw.integers(2, 30)), int(draw.integers(1, 200))
    labels, logits = draw.integers(0, count, rows), draw.standard_normal((rows, count))
    predicted = logits.argmax(axis=1)
    expected = {
        "accuracy": accuracy_score(labels, predicted),
        "macro_f1": f1_score(labels, predicted, average="macro", zero_division=0),
    }
    assert metrics.classification(logits, labels) == expected
    matrix = metrics.confusion(labels, predicted, count)
    assert np.array_equal(matrix, confusion_matrix(labels, predicted, labels=np.arange(count)))
    theirs = precision_recall_fscore_support(labels, predicted, labels=np.arange(count), zero_division=0)
    for ours, other in zip(metrics.scores_of_classes(matrix), theirs, strict=False):
        assert np.array_equal(ours, other)

    several = draw.integers(0, 2, (rows, count)) * (draw.random(count) < 0.7)  # some labels occur nowhere
    given = (logits > 0).astype(np.int64)
    there = np.flatnonzero((several | given).any(axis=0))
    each = f1_score(several, given, labels=there, average=None, zero_division=0)
    assert metrics.multi_label(logits, several) == {
        "micro_f1": f1_score(several, given, average="micro", zero_division=0),
        "macro_f1": np.mean(each),
        "subset_accuracy": accuracy_score(several, given),
    }
    theirs = precision_recall_fscore_support(several, given, average=None, zero_division=0)
    for ours, other in zip(metrics.scores_of_several(several, given), theirs, strict=False):
        assert np.array_equal(ours, other)
