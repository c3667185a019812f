"""The port's discrete choices against R64's: how many differ, and by how much the best led at most."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from toolkit.parity.comparator.choices import NAN, POSITIVE, Choices
from toolkit.parity.exchange.results import CandidateFacts, Flips

SCORES = np.array([[1.0, 1.5, 0.0, 0.25], [3.0, 0.0, 2.75, 1.0], [0.0, 5.0, 1.0, 4.0]])


def count_flips(kind: str, name: str, value: np.ndarray, drawn: dict[str, np.ndarray], content: object = None) -> Flips:
    """Return the flips that a message about a choice leaves in the facts, with R64's draws."""
    facts, run = CandidateFacts(), name.rpartition("/")[0] or "training"
    choices = Choices(SimpleNamespace(draws={run: drawn}), facts)
    choices.handle(SimpleNamespace(kind=kind, name=name, value=lambda: value, content=content))
    found = {**facts.relu_flips, **facts.bucket_flips, **facts.choice_flips}
    place = name.partition(":")[2]
    return found[f"{run}/{place}" if "/" in name else place]


@pytest.mark.parametrize("run", ["", "evaluation/"])
def test_of_several_flipped_signs_the_largest_input_counts(run):
    inputs = np.array([1e-9, -0.5, 2.0, -1e-3, 0.25])
    ours = np.array([0, POSITIVE, POSITIVE, 0, NAN], np.int8)
    drawn = {"relu:ffn": (inputs > 0).astype(np.uint8), "input:ffn": inputs}
    assert count_flips("signs", f"{run}relu:ffn", ours, drawn) == Flips(2, 5, 0.5)


@pytest.mark.parametrize("run", ["", "shorter/"])
def test_of_several_flipped_buckets_the_largest_margin_counts(run):
    truth, margins = np.array([[0, 1, 2, 3]]), np.array([[1e-7, 0.75, 0.125, 9.0]])
    drawn = {"buckets:attention": truth, "margin:attention": margins}
    assert count_flips("buckets", f"{run}buckets:attention", np.array([[1, 0, 0, 3]]), drawn) == Flips(3, 4, 0.75)
    assert count_flips("buckets", f"{run}buckets:attention", truth, drawn) == Flips(0, 4, 0.0)


@pytest.mark.parametrize("run", ["", "evaluation/"])
def test_of_several_other_choices_the_largest_lead_counts(run):
    best = SCORES.argmax(-1)
    ours = np.array([0, 2, 3])  # 0.5, 0.25 and 1.0 below the best
    drawn = {"choice:router": best, "scores:router": SCORES}
    assert count_flips("choice", f"{run}choice:router", ours[:, None], drawn, [3, 4]) == Flips(3, 3, 1.0)


def test_a_choice_among_equal_scores_has_no_lead_and_one_of_no_number_any():
    scores = np.array([[2.0, 2.0], [1.0, np.nan]])
    drawn = {"choice:router": np.array([0, 0]), "scores:router": scores}
    assert count_flips("choice", "choice:router", np.array([[1], [0]]), drawn, [2, 2]) == Flips(1, 2, 0.0)
    assert count_flips("choice", "choice:router", np.array([[0], [1]]), drawn, [2, 2]) == Flips(1, 2, np.inf)
