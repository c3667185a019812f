"""Test discrete choices of the port against R64's: how many differ, and the largest lead of the correct choice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from toolkit.parity.comparator.choices import NAN, POSITIVE, Choices
from toolkit.parity.exchange.results import CandidateFacts, Flips

SCORES = np.array([[1.0, 1.5, 0.0, 0.25], [3.0, 0.0, 2.75, 1.0], [0.0, 5.0, 1.0, 4.0]])


def count_flips(
    kind: str, name: str, value: np.ndarray, reference_values: dict[str, np.ndarray], content: object = None
) -> Flips:
    """Return the flips that the facts record for a message about a choice, given R64's values."""
    facts, run = CandidateFacts(), name.rpartition("/")[0] or "training"
    choices = Choices(SimpleNamespace(draws={run: reference_values}), facts)
    choices.handle(SimpleNamespace(kind=kind, name=name, value=lambda: value, content=content))
    all_flips = {**facts.relu_flips, **facts.bucket_flips, **facts.choice_flips}
    place = name.partition(":")[2]
    return all_flips[f"{run}/{place}" if "/" in name else place]


@pytest.mark.parametrize("run", ["", "evaluation/"])
def test_the_largest_input_of_several_flipped_signs_counts(run):
    inputs = np.array([1e-9, -0.5, 2.0, -1e-3, 0.25])
    ours = np.array([0, POSITIVE, POSITIVE, 0, NAN], np.int8)
    reference_values = {"relu:ffn": (inputs > 0).astype(np.uint8), "input:ffn": inputs}
    assert count_flips("signs", f"{run}relu:ffn", ours, reference_values) == Flips(2, 5, 0.5)


@pytest.mark.parametrize("run", ["", "shorter/"])
def test_the_largest_margin_of_several_flipped_buckets_counts(run):
    truth, margins = np.array([[0, 1, 2, 3]]), np.array([[1e-7, 0.75, 0.125, 9.0]])
    reference_values = {"buckets:attention": truth, "margin:attention": margins}
    assert count_flips("buckets", f"{run}buckets:attention", np.array([[1, 0, 0, 3]]), reference_values) == Flips(
        3, 4, 0.75
    )
    assert count_flips("buckets", f"{run}buckets:attention", truth, reference_values) == Flips(0, 4, 0.0)


@pytest.mark.parametrize("run", ["", "evaluation/"])
def test_the_largest_lead_of_several_different_choices_counts(run):
    best = SCORES.argmax(-1)
    ours = np.array([0, 2, 3])  # 0.5, 0.25 and 1.0 below the best
    reference_values = {"choice:router": best, "scores:router": SCORES}
    assert count_flips("choice", f"{run}choice:router", ours[:, None], reference_values, [3, 4]) == Flips(3, 3, 1.0)


def test_a_choice_among_equal_scores_or_nan_has_no_lead():
    scores = np.array([[2.0, 2.0], [1.0, np.nan]])
    reference_values = {"choice:router": np.array([0, 0]), "scores:router": scores}
    assert count_flips("choice", "choice:router", np.array([[1], [0]]), reference_values, [2, 2]) == Flips(1, 2, 0.0)
    assert count_flips("choice", "choice:router", np.array([[0], [1]]), reference_values, [2, 2]) == Flips(1, 2, np.inf)
