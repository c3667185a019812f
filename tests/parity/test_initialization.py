"""Test randomly initialized weights against the reference's.

Correct weights pass for many seeds, and each kind of fault is found.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from toolkit.parity.exchange.results import CandidateResult, NewWeights, ReferenceResult
from toolkit.parity.judge import initialization_tests
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Finding
from toolkit.parity.judge.rng_tests import LIMIT
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.initial_values import MAX_SAMPLES, NUM_MODELS, Samples, compare_sides, sample_values

WIDTH = 0.02
#: A tiny tensor, a tensor of 10^4 elements, and one with more elements than are kept; the row of a padding index is
#: zero.
SHAPES = {"tiny": (5,), "matrix": (100, 100), "large": (300, 300), "padded": (64, 32)}
PADDING = 3
Model = dict[str, np.ndarray]


def draw_normal(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return WIDTH * draw.standard_normal(shape)


def make_model(seed: int, number: int, values: Callable = draw_normal) -> Model:
    draw = np.random.default_rng([seed, number])
    weights = {name: values(draw, shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights["padded"][PADDING] = 0
    return {**weights, "bias": np.zeros(7, np.float32), "gain": np.ones(1, np.float32)}


def make_samples(seed: int, values: Callable = draw_normal, change: Callable[[Model], Model] = dict) -> Samples:
    return sample_values(change(make_model(seed, number, values)) for number in range(NUM_MODELS))


REFERENCE = make_samples(10**6)


def find_faults(ours: Samples) -> dict[str, str]:
    return dict(
        initialization_tests.find_wrong_initializations(NewWeights("weights.py", compare_sides(ours, REFERENCE)))
    )


def draw_two_valued_center(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw normal numbers, but move those within one deviation so that mean and spread stay the same."""
    x = draw.standard_normal(shape)
    return WIDTH * np.where(np.abs(x) < 1, np.sign(x) * np.sqrt((x[np.abs(x) < 1] ** 2).mean()), x)


def test_correct_values_raise_no_alarm():
    largest = 0.0
    for seed in range(20):
        new = compare_sides(make_samples(seed), make_samples(seed + 1000))
        assert list(initialization_tests.find_wrong_initializations(NewWeights("weights.py", new))) == []
        z = [deviation.z for name, values in new.items() for deviation in initialization_tests.deviations(name, values)]
        assert len(z) == 6 * len(SHAPES)
        largest = max(largest, *map(abs, z))
    assert 2.0 < largest < LIMIT - 2.0


@pytest.mark.parametrize("factor", [1 / 1.05, 1.05])
def test_a_difference_of_a_twentieth_is_found_in_ten_thousand_elements(factor):
    faults_by_name = find_faults(make_samples(0, lambda draw, shape: factor * draw_normal(draw, shape)))
    assert {"matrix", "large"} <= faults_by_name.keys() and faults_by_name["matrix"].startswith(
        "as weights.py makes it anew: the spread of 65536 values is 0.0"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda draw, shape: draw.uniform(-1, 1, shape) * WIDTH * 3**0.5, "lie beyond 1 standard deviations"),
        (lambda draw, shape: draw_normal(draw, shape).clip(-2 * WIDTH, 2 * WIDTH), "the spread of"),
        (lambda draw, shape: draw_normal(draw, shape) + 0.1 * WIDTH, "the mean of"),
        (draw_two_valued_center, "the distribution of"),
        (lambda draw, shape: np.full(shape, np.nan), "the spread of"),
    ],
)
def test_another_kind_of_distribution_is_found(values, message):
    assert message in find_faults(make_samples(0, values))["matrix"]


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
def test_a_constant_must_be_equal(name, value, message):
    faults_by_name = find_faults(make_samples(0, change=lambda weights: {**weights, name: value.astype(np.float32)}))
    assert faults_by_name.keys() == {name} and message in faults_by_name[name]


def test_the_padding_row_must_be_zero_and_a_missing_parameter_is_named():
    def move_padding_row(weights: Model) -> Model:
        return {**weights, "padded": np.roll(weights["padded"], 1, 0)}

    assert find_faults(make_samples(0, change=move_padding_row)) == {
        "padded": "as weights.py makes it anew: rows of zeros are 4; the reference's: 3"
    }
    missing = make_samples(0, change=lambda weights: {name: weights[name] for name in weights if name != "gain"})
    assert find_faults(missing) == {"gain": "as weights.py makes it anew: it is missing"}


def test_few_elements_of_a_large_parameter_are_kept_and_survive_a_round_trip():
    assert [len(REFERENCE.values[name]) for name in ("tiny", "large")] == [5 * NUM_MODELS, MAX_SAMPLES]
    loaded_samples = Samples.of(REFERENCE.tensors())
    assert loaded_samples.values.keys() == REFERENCE.values.keys() and list(loaded_samples.zero_rows) == ["padded"]
    assert all((loaded_samples.values[name] == value).all() for name, value in make_samples(10**6).values.items())


def test_new_weights_are_named_by_first_use_and_after_the_findings_of_the_step():
    ours = make_samples(0, lambda draw, shape: 2 * draw_normal(draw, shape))
    new = NewWeights(
        "weights.py", {f"{name}.weight": comparison for name, comparison in compare_sides(ours, REFERENCE).items()}
    )
    verdict = judge(ReferenceResult(), CandidateResult(new_weights=new))
    assert {finding.verdict for finding in verdict.findings} == {"initialisation"}
    order = ["output:large", "output:matrix", "loss"]
    assert first_at_fault(verdict, order).name == "new:large.weight"
    verdict.findings.append(Finding("semantics", "loss", "off", "float64"))
    assert first_at_fault(verdict, order).name == "loss"
