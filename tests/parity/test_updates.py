"""What the updates of the gate are given: gradients that tell a wrong weight of a micro-batch from a right one."""

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
    alone = [scale_gradient(GRADIENT, update, row) for row in np.eye(4)]
    mean = sum(count * one for count, one in zip(terms, alone, strict=True)) / terms.sum()
    np.testing.assert_allclose(scale_gradient(GRADIENT, update, weigh_terms(terms)), mean, rtol=1e-14)


@pytest.mark.parametrize("update", range(1, len(SHARES) + 1))
def test_wrong_weights_change_the_direction_and_not_the_size_alone(update):
    right = scale_gradient(GRADIENT, update, weigh_terms(np.array([2, 2, 1]))).ravel()
    wrong = scale_gradient(GRADIENT, update, [0.25, 0.25, 0.5]).ravel()
    cosine = right @ wrong / np.linalg.norm(right) / np.linalg.norm(wrong)
    assert cosine < 0.9995


def test_no_two_updates_are_alike_in_every_element():
    """Else the decay rates of Adam's moments would cancel out."""
    sizes = [np.abs(scale_gradient(GRADIENT, update, [1.0])).ravel() for update in range(1, len(SHARES) + 1)]
    for first, second in itertools.pairwise(sizes):
        assert len(np.unique((first / second).round(9))) > 1


@pytest.mark.parametrize(("wrong", "beta2"), [(0.92, 0.99), (0.88, 0.99), (0.0, 0.98)])
def test_a_wrong_beta1_of_lion_turns_the_sign_of_some_sums(wrong, beta2):
    gradient = np.ones(180)
    first, second = (scale_gradient(gradient, update, [0.6, 0.4], "lion") for update in (1, 2))
    sums = [beta1 * (1 - beta2) * first + (1 - beta1) * second for beta1 in (0.9, wrong)]
    assert (np.sign(sums[0]) != np.sign(sums[1])).any()


def test_terms_are_those_of_the_loss():
    labels = np.array([[5, 6, -100], [-100, -100, 1]])
    assert count_loss_terms("language_modeling", {"labels": labels}).tolist() == [1, 1]
    assert count_loss_terms("classification", {"labels": np.array([0, -100, 2])}).tolist() == [1, 0, 1]
    assert count_loss_terms("question_answering", {"start_positions": np.zeros(3)}).tolist() == [1, 1, 1]
    assert weigh_terms(np.array([0, 0])).tolist() == [0, 0]


def test_no_two_examples_share_a_token_or_a_mask_and_one_that_may_be_left_out_is_not_compared():
    for count in (1, 2, 5, 64, 191):
        made = make_distinct_inputs(count)
        assert len(np.unique(made["input_ids"])) == made["input_ids"].size and made["input_ids"].shape[0] == count
        assert len(np.unique(made["attention_mask"], axis=0)) == count and set(made["attention_mask"].flat) <= {0, 1}
        assert made["attention_mask"].any(1).all()
    labels = {"labels": np.array([[0.1, 1.0], [0.3, 2.0]])}
    given = clean_examples(labels, np.array([0, 2]))["trained:labels"]
    assert given.tolist() == [[0, 0], [float(np.float32(0.3)), 2.0]]


@pytest.mark.parametrize(("batch", "steps", "rows"), [(4, 1, 4), (4, 2, 7), (4, 64, 11), (1, 2, 2), (1, 1, 1)])
def test_the_last_of_several_micro_batches_is_short(batch, steps, rows):
    assert count_update_rows(batch, steps) == rows


def test_the_rates_of_a_short_run_are_all_compared_and_of_a_long_one_the_first_and_the_last():
    assert pick_updates(3) == [1, 2, 3]
    long = pick_updates(10**6)
    assert len(long) == 1000 and (long[0], long[-1]) == (1, 10**6)
