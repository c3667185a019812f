"""Test synthetic weights: a seed gives the same weights on every machine, and large weights are drawn in parts."""

from __future__ import annotations

import numpy as np
import pytest

from models.ctrl import schema
from toolkit.parity.inputs import synthetic
from toolkit.parity.inputs.synthetic import KINDS, SyntheticWeights, randomize_constants

CONFIG = schema.resolve({"n_embd": 64, "n_head": 4, "dff": 96, "n_layer": 2, "n_positions": 64, "vocab_size": 999})
TABLE, MATRIX = "transformer.w.weight", "transformer.h.0.ffn.0.weight"


def make_weights(kind: str, seed: int = 3) -> dict[str, np.ndarray]:
    return dict(SyntheticWeights(CONFIG, "causal_lm", seed, kind, "ctrl"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_parameter_is_drawn_in_parts_and_others_are_unchanged(kind, monkeypatch):
    full_weights = make_weights(kind)
    monkeypatch.setattr(synthetic, "LARGE", 2**13)  # the table has 63,936 elements, a matrix 6,144
    parts, equal_weights = make_weights(kind), make_weights(kind)
    assert parts.keys() == full_weights.keys()
    for name in full_weights:
        np.testing.assert_array_equal(parts[name], equal_weights[name], strict=True)
        assert (name == TABLE) != np.array_equal(parts[name], full_weights[name])
    flat = parts[TABLE].reshape(-1)
    assert parts[TABLE].shape == full_weights[TABLE].shape and (flat != 0).all()
    slices = [flat[start : start + 2**13] for start in range(0, flat.size, 2**13)]
    assert len(slices) == 8 and not np.array_equal(slices[0], slices[1])
    for part in slices:  # all parts have the same size: the median of heavy tails is known to a few per cent
        assert np.median(abs(part)) == pytest.approx(np.median(abs(full_weights[TABLE])), rel=0.1)


def test_heavy_tails_are_students_t_with_three_degrees_of_freedom(monkeypatch):
    monkeypatch.setattr(synthetic, "PIECE", 1000)  # not a divisor of the size
    values = make_weights("heavy-tailed")[TABLE].reshape(-1).astype(float)
    values /= np.median(abs(values)) / 0.7649  # the upper quartile of that distribution
    for beyond, share in ((0.9785, 0.4), (1.6377, 0.2), (3.1824, 0.05), (5.8409, 0.01)):
        deviation = (share * (1 - share) / values.size) ** 0.5
        assert (abs(values) > beyond).mean() == pytest.approx(share, abs=6 * deviation)


def test_the_size_of_a_part_changes_no_value(monkeypatch):
    full_weights = make_weights("heavy-tailed")
    monkeypatch.setattr(synthetic, "PIECE", 777)
    np.testing.assert_array_equal(make_weights("heavy-tailed")[MATRIX], full_weights[MATRIX], strict=True)


def test_only_parameters_with_equal_values_are_randomized():
    weights = {"constant": np.ones(9), "ends alike": np.array([1.0, 2.0, 1.0]), "one": np.ones(1), "none": np.ones(0)}
    new_weights, count = randomize_constants(weights, 0)
    assert count == 2
    assert [name for name in weights if not np.array_equal(new_weights[name], weights[name])] == ["constant", "one"]
