"""Activations against the reference's own: as accurate where they saturate, and finite everywhere."""

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
#: Where Paddle's own CPU kernel is less accurate than the reference, by name and scale.
INEXACT = {
    **dict.fromkeys([("silu", 1000.0), ("swish", 1000.0)], OVERFLOWS),
    **dict.fromkeys([("gelu_new", 3.0), ("gelu_new", 10.0), ("tanh", 10.0), ("tanh", 1000.0)], SATURATES),
}
#: Where it is by so little that it may not be on another processor.
NEARLY = {("tanh", 3.0): SATURATES}


def scaled(name: str, scale: float):
    """The parameters of a test, with what is known of Paddle's own kernel there."""
    if (name, scale) in NEARLY:
        return pytest.param(name, scale, marks=pytest.mark.beyond_paddle(NEARLY[name, scale], strict=False))
    marks = [pytest.mark.beyond_paddle(INEXACT[name, scale])] if (name, scale) in INEXACT else []
    return pytest.param(name, scale, marks=marks)


def test_every_activation_that_a_configuration_may_name_is_there():
    assert set(ACTIVATIONS) == set(schema.ACTIVATIONS)


def theirs(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    given = torch.tensor(x, requires_grad=True)
    value = ACT2FN[name](given)
    value.sum().backward()
    return value.detach().numpy(), given.grad.numpy()


def ours(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    given = paddle.to_tensor(x, stop_gradient=False)
    value = ACTIVATIONS[name]()(given)
    value.sum().backward()
    return value.numpy(), given.grad.numpy()


@pytest.mark.parametrize(
    ("name", "scale"), [scaled(name, scale) for name in ACTIVATIONS for scale in (0.1, 1.0, 3.0, 10.0, 1000.0)]
)
def test_value_and_gradient_are_about_as_accurate_as_the_references(name, scale):
    """In float32, against float64; the floor is what the gate allows for an operation."""
    x = (scale * np.random.default_rng(0).standard_normal(20_000)).astype("float32")
    truth = theirs(name, x.astype("float64"))
    for index, (true, their, our) in enumerate(zip(truth, theirs(name, x), ours(name, x), strict=True)):
        size = np.sqrt(np.mean(true**2))
        allowed = (3 if index == 0 else 2) * np.sqrt(np.mean((their - true) ** 2)) + 2.0**-23 * size
        assert np.sqrt(np.mean((our - true) ** 2)) <= allowed


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_float64_is_the_references_to_rounding(name):
    x = 3 * np.random.default_rng(0).standard_normal(20_000)
    for their, our in zip(theirs(name, x), ours(name, x), strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("dtype", "far"), [("float32", 1e30), ("float64", 1e100)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.beyond_paddle(OVERFLOWS)] * (name in ("silu", "swish")))
        for name in ACTIVATIONS
    ],
)
def test_far_from_0_all_is_finite(name, dtype, far):
    x = np.array([-far, -1000.0, -100.0, 100.0, 1000.0, far], dtype)
    for their, our in zip(theirs(name, x), ours(name, x), strict=True):
        assert np.isfinite(our).all() or not np.isfinite(their).all()
        np.testing.assert_allclose(our[np.isfinite(their)], their[np.isfinite(their)], rtol=1e-6, atol=1e-30)
