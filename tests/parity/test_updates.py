"""Test the gradients for the gate's updates.

They distinguish a wrong weight of a micro-batch from the correct weight.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from toolkit.parity.measure.updates import (
    SHARES,
    clean_examples,
    count_loss_terms,
    count_update_rows,
    make_distinct_inputs,
    pick_updates,
    scale_gradient,
    weigh_terms,
)

GRADIENT = np.random.default_rng(0).standard_normal((7, 5))


@pytest.mark.parametrize("update", range(1, len(SHARES) + 1))
def test_the_gradient_of_a_mean_is_the_mean_of_the_gradients(update):
    terms = np.array([3, 1, 0, 4])
    gradients_by_example = [scale_gradient(GRADIENT, update, row) for row in np.eye(4)]
    mean = sum(count * gradient for count, gradient in zip(terms, gradients_by_example, strict=True)) / terms.sum()
    np.testing.assert_allclose(scale_gradient(GRADIENT, update, weigh_terms(terms)), mean, rtol=1e-14)


@pytest.mark.parametrize("update", range(1, len(SHARES) + 1))
def test_wrong_weights_change_the_direction_of_the_gradient(update):
    correct_gradient = scale_gradient(GRADIENT, update, weigh_terms(np.array([2, 2, 1]))).ravel()
    wrong_gradient = scale_gradient(GRADIENT, update, [0.25, 0.25, 0.5]).ravel()
    cosine = correct_gradient @ wrong_gradient / np.linalg.norm(correct_gradient) / np.linalg.norm(wrong_gradient)
    assert cosine < 0.9995


def test_no_two_updates_are_proportional():
    """Otherwise the decay rates of Adam's moments would cancel out."""
    sizes = [np.abs(scale_gradient(GRADIENT, update, [1.0])).ravel() for update in range(1, len(SHARES) + 1)]
    for first, second in itertools.pairwise(sizes):
        assert len(np.unique((first / second).round(9))) > 1


@pytest.mark.parametrize(("wrong_beta1", "beta2"), [(0.92, 0.99), (0.88, 0.99), (0.0, 0.98)])
def test_a_wrong_beta1_of_lion_changes_the_sign_of_some_sums(wrong_beta1, beta2):
    gradient = np.ones(180)
    first, second = (scale_gradient(gradient, update, [0.6, 0.4], "lion") for update in (1, 2))
    sums = [beta1 * (1 - beta2) * first + (1 - beta1) * second for beta1 in (0.9, wrong_beta1)]
    assert (np.sign(sums[0]) != np.sign(sums[1])).any()


def test_the_terms_equal_the_terms_of_the_loss():
    labels = np.array([[5, 6, -100], [-100, -100, 1]])
    assert count_loss_terms("language_modeling", {"labels": labels}).tolist() == [1, 1]
    assert count_loss_terms("classification", {"labels": np.array([0, -100, 2])}).tolist() == [1, 0, 1]
    assert count_loss_terms("question_answering", {"start_positions": np.zeros(3)}).tolist() == [1, 1, 1]
    assert weigh_terms(np.array([0, 0])).tolist() == [0, 0]


def test_examples_share_no_token_or_mask_and_optional_examples_are_not_compared():
    for count in (1, 2, 5, 64, 191):
        inputs = make_distinct_inputs(count)
        assert len(np.unique(inputs["input_ids"])) == inputs["input_ids"].size and inputs["input_ids"].shape[0] == count
        assert len(np.unique(inputs["attention_mask"], axis=0)) == count and set(inputs["attention_mask"].flat) <= {
            0,
            1,
        }
        assert inputs["attention_mask"].any(1).all()
    labels = {"labels": np.array([[0.1, 1.0], [0.3, 2.0]])}
    cleaned_labels = clean_examples(labels, np.array([0, 2]))["trained:labels"]
    assert cleaned_labels.tolist() == [[0, 0], [float(np.float32(0.3)), 2.0]]


@pytest.mark.parametrize(("batch", "steps", "rows"), [(4, 1, 4), (4, 2, 7), (4, 64, 11), (1, 2, 2), (1, 1, 1)])
def test_the_last_of_several_micro_batches_is_short(batch, steps, rows):
    assert count_update_rows(batch, steps) == rows


def test_all_rates_of_a_short_run_and_the_outer_rates_of_a_long_run_are_compared():
    assert pick_updates(3) == [1, 2, 3]
    long = pick_updates(10**6)
    assert len(long) == 1000 and (long[0], long[-1]) == (1, 10**6)
