"""Made-up weights: the same for a seed whatever the machine, the large ones in parts."""

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
def test_a_large_parameter_is_drawn_in_parts_and_no_other_changes(kind, monkeypatch):
    whole = make_weights(kind)
    monkeypatch.setattr(synthetic, "LARGE", 2**13)  # the table has 63,936 elements, a matrix 6,144
    parts, again = make_weights(kind), make_weights(kind)
    assert parts.keys() == whole.keys()
    for name in whole:
        np.testing.assert_array_equal(parts[name], again[name], strict=True)
        assert (name == TABLE) != np.array_equal(parts[name], whole[name])
    flat = parts[TABLE].reshape(-1)
    assert parts[TABLE].shape == whole[TABLE].shape and (flat != 0).all()
    drawn = [flat[start : start + 2**13] for start in range(0, flat.size, 2**13)]
    assert len(drawn) == 8 and not np.array_equal(drawn[0], drawn[1])
    for one in drawn:  # of one size, all of them: the median of heavy tails is known to a few per cent
        assert np.median(abs(one)) == pytest.approx(np.median(abs(whole[TABLE])), rel=0.1)


def test_heavy_tails_are_students_t_with_three_degrees_of_freedom(monkeypatch):
    monkeypatch.setattr(synthetic, "PIECE", 1000)  # no divisor of the size
    values = make_weights("heavy-tailed")[TABLE].reshape(-1).astype(float)
    values /= np.median(abs(values)) / 0.7649  # the upper quartile of that distribution
    for beyond, share in ((0.9785, 0.4), (1.6377, 0.2), (3.1824, 0.05), (5.8409, 0.01)):
        deviation = (share * (1 - share) / values.size) ** 0.5
        assert (abs(values) > beyond).mean() == pytest.approx(share, abs=6 * deviation)


def test_the_size_of_a_piece_changes_no_value(monkeypatch):
    whole = make_weights("heavy-tailed")
    monkeypatch.setattr(synthetic, "PIECE", 777)
    np.testing.assert_array_equal(make_weights("heavy-tailed")[MATRIX], whole[MATRIX], strict=True)


def test_only_a_parameter_whose_values_are_all_equal_is_given_random_ones():
    weights = {"constant": np.ones(9), "ends alike": np.array([1.0, 2.0, 1.0]), "one": np.ones(1), "none": np.ones(0)}
    randomized, count = randomize_constants(weights, 0)
    assert count == 2
    assert [name for name in weights if not np.array_equal(randomized[name], weights[name])] == ["constant", "one"]
