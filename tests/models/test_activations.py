"""Test activations against the reference's: equally accurate if they saturate, and finite everywhere."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch
from transformers.activations import ACT2FN

from models.operations.activations import ACTIVATIONS
from models.reformer import schema

pytestmark = pytest.mark.usefixtures("kernels")

OVERFLOWS = "its gradient of SiLU is NaN where exp(-x) overflows"
SATURATES = "its float32 tanh is off where it is nearly 1"
#: Known inaccuracies of Paddle's CPU kernels compared with the reference, by name and scale.
INEXACT = {
    **dict.fromkeys([("silu", 1000.0), ("swish", 1000.0)], OVERFLOWS),
    **dict.fromkeys([("gelu_new", 3.0), ("gelu_new", 10.0), ("tanh", 10.0), ("tanh", 1000.0)], SATURATES),
}
#: Inaccuracies so small that they may not occur on another processor.
NEARLY_EXACT = {("tanh", 3.0): SATURATES}


def make_case(name: str, scale: float):
    """Return the parameters of a test, with the known inaccuracy of Paddle's kernel."""
    if (name, scale) in NEARLY_EXACT:
        return pytest.param(name, scale, marks=pytest.mark.beyond_paddle(NEARLY_EXACT[name, scale], strict=False))
    marks = [pytest.mark.beyond_paddle(INEXACT[name, scale])] if (name, scale) in INEXACT else []
    return pytest.param(name, scale, marks=marks)


def test_every_activation_of_a_configuration_exists():
    assert set(ACTIVATIONS) == set(schema.ACTIVATIONS)


def compute_theirs(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inputs = torch.tensor(x, requires_grad=True)
    value = ACT2FN[name](inputs)
    value.sum().backward()
    return value.detach().numpy(), inputs.grad.numpy()


def compute_ours(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inputs = paddle.to_tensor(x, stop_gradient=False)
    value = ACTIVATIONS[name]()(inputs)
    value.sum().backward()
    return value.numpy(), inputs.grad.numpy()


@pytest.mark.parametrize(
    ("name", "scale"), [make_case(name, scale) for name in ACTIVATIONS for scale in (0.1, 1.0, 3.0, 10.0, 1000.0)]
)
def test_value_and_gradient_are_about_as_accurate_as_the_references(name, scale):
    """Compare float32 with float64; the floor is the gate's tolerance for an operation."""
    x = (scale * np.random.default_rng(0).standard_normal(20_000)).astype("float32")
    truth = compute_theirs(name, x.astype("float64"))
    for index, (true_values, their_values, our_values) in enumerate(
        zip(truth, compute_theirs(name, x), compute_ours(name, x), strict=True)
    ):
        size = np.sqrt(np.mean(true_values**2))
        max_error = (3 if index == 0 else 2) * np.sqrt(np.mean((their_values - true_values) ** 2)) + 2.0**-23 * size
        assert np.sqrt(np.mean((our_values - true_values) ** 2)) <= max_error


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_float64_equals_the_reference_up_to_rounding(name):
    x = 3 * np.random.default_rng(0).standard_normal(20_000)
    for their, our in zip(compute_theirs(name, x), compute_ours(name, x), strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("dtype", "far"), [("float32", 1e30), ("float64", 1e100)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.beyond_paddle(OVERFLOWS)] * (name in ("silu", "swish")))
        for name in ACTIVATIONS
    ],
)
def test_values_far_from_0_are_finite(name, dtype, far):
    x = np.array([-far, -1000.0, -100.0, 100.0, 1000.0, far], dtype)
    for their, our in zip(compute_theirs(name, x), compute_ours(name, x), strict=True):
        assert np.isfinite(our).all() or not np.isfinite(their).all()
        np.testing.assert_allclose(our[np.isfinite(their)], their[np.isfinite(their)], rtol=1e-6, atol=1e-30)
