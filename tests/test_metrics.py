"""Metrics agree with what a person counts."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit import metrics


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
