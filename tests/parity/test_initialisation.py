"""New weights against the reference's own: right ones pass for many seeds, each kind of wrong one is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from toolkit.parity.exchange.results import CandidateResult, NewWeights, ReferenceResult
from toolkit.parity.judge import initialisation_tests
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Finding
from toolkit.parity.judge.rng_tests import LIMIT
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.initial_values import MAX_SAMPLES, NUM_MODELS, Samples, compare_sides, sample_values

WIDTH = 0.02
#: Of a tiny vector, of 10^4 elements, and of more than are kept; a padding index's row is zero.
SHAPES = {"tiny": (5,), "matrix": (100, 100), "large": (300, 300), "padded": (64, 32)}
PADDING = 3
Model = dict[str, np.ndarray]


def normal(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return WIDTH * draw.standard_normal(shape)


def model(seed: int, number: int, values: Callable = normal) -> Model:
    draw = np.random.default_rng([seed, number])
    made = {name: values(draw, shape).astype(np.float32) for name, shape in SHAPES.items()}
    made["padded"][PADDING] = 0
    return {**made, "bias": np.zeros(7, np.float32), "gain": np.ones(1, np.float32)}


def samples(seed: int, values: Callable = normal, change: Callable[[Model], Model] = dict) -> Samples:
    return sample_values(change(model(seed, number, values)) for number in range(NUM_MODELS))


REFERENCE = samples(10**6)


def faults(ours: Samples) -> dict[str, str]:
    return dict(
        initialisation_tests.find_wrong_initializations(NewWeights("weights.py", compare_sides(ours, REFERENCE)))
    )


def two_valued_within(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal but for what lies within one deviation, which is moved so that mean and spread stay."""
    x = draw.standard_normal(shape)
    return WIDTH * np.where(np.abs(x) < 1, np.sign(x) * np.sqrt((x[np.abs(x) < 1] ** 2).mean()), x)


def test_right_values_raise_no_alarm():
    largest = 0.0
    for seed in range(20):
        new = compare_sides(samples(seed), samples(seed + 1000))
        assert list(initialisation_tests.find_wrong_initializations(NewWeights("weights.py", new))) == []
        z = [one.z for name, values in new.items() for one in initialisation_tests.deviations(name, values)]
        assert len(z) == 6 * len(SHAPES)
        largest = max(largest, *map(abs, z))
    assert 2.0 < largest < LIMIT - 2.0


@pytest.mark.parametrize("factor", [1 / 1.05, 1.05])
def test_a_twentieth_more_or_less_is_seen_of_ten_thousand_elements(factor):
    found = faults(samples(0, lambda draw, shape: factor * normal(draw, shape)))
    assert {"matrix", "large"} <= found.keys() and found["matrix"].startswith(
        "as weights.py makes it anew: the spread of 65536 values is 0.0"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda draw, shape: draw.uniform(-1, 1, shape) * WIDTH * 3**0.5, "lie beyond 1 standard deviations"),
        (lambda draw, shape: normal(draw, shape).clip(-2 * WIDTH, 2 * WIDTH), "the spread of"),
        (lambda draw, shape: normal(draw, shape) + 0.1 * WIDTH, "the mean of"),
        (two_valued_within, "the distribution of"),
        (lambda draw, shape: np.full(shape, np.nan), "the spread of"),
    ],
)
def test_another_kind_of_distribution_is_found(values, message):
    assert message in faults(samples(0, values))["matrix"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bias", np.full(7, 0.1), "all 0.1; the reference's: all 0"),
        ("bias", np.arange(7.0), "from 0 to 6; the reference's: all 0"),
        ("gain", np.zeros(1), "all 0; the reference's: all 1"),
        ("matrix", np.zeros((100, 100)), "all 0; the reference's: from -0"),
        ("more", np.zeros(2), "the reference has no such parameter"),
    ],
)
def test_a_constant_must_be_the_same(name, value, message):
    found = faults(samples(0, change=lambda made: {**made, name: value.astype(np.float32)}))
    assert found.keys() == {name} and message in found[name]


def test_the_row_of_a_padding_index_is_zero_on_both_sides_and_a_parameter_that_is_missing_is_named():
    def elsewhere(made: Model) -> Model:
        return {**made, "padded": np.roll(made["padded"], 1, 0)}

    assert faults(samples(0, change=elsewhere)) == {
        "padded": "as weights.py makes it anew: rows of zeros are 4; the reference's: 3"
    }
    missing = samples(0, change=lambda made: {name: made[name] for name in made if name != "gain"})
    assert faults(missing) == {"gain": "as weights.py makes it anew: it is missing"}


def test_little_is_kept_of_a_large_parameter_and_it_comes_back_from_a_file_as_it_was():
    assert [len(REFERENCE.values[name]) for name in ("tiny", "large")] == [5 * NUM_MODELS, MAX_SAMPLES]
    again = Samples.of(REFERENCE.tensors())
    assert again.values.keys() == REFERENCE.values.keys() and list(again.zero_rows) == ["padded"]
    assert all((again.values[name] == value).all() for name, value in samples(10**6).values.items())


def test_new_weights_are_named_by_first_use_and_after_what_the_step_shows():
    ours = samples(0, lambda draw, shape: 2 * normal(draw, shape))
    new = NewWeights("weights.py", {f"{name}.weight": one for name, one in compare_sides(ours, REFERENCE).items()})
    verdict = judge(ReferenceResult(), CandidateResult(new_weights=new))
    assert {finding.verdict for finding in verdict.findings} == {"initialisation"}
    order = ["output:large", "output:matrix", "loss"]
    assert first_at_fault(verdict, order).name == "new:large.weight"
    verdict.findings.append(Finding("semantics", "loss", "off", "float64"))
    assert first_at_fault(verdict, order).name == "loss"
