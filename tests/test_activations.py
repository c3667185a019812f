"""Activations against the reference's own: as accurate where they saturate, and finite everywhere."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch
from transformers.activations import ACT2FN

from models.activations import ACTIVATIONS
from models.reformer import schema

pytestmark = pytest.mark.usefixtures("kernels")


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


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0, 1000.0])
@pytest.mark.parametrize("name", ACTIVATIONS)
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
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_far_from_0_all_is_finite(name, dtype, far):
    x = np.array([-far, -1000.0, -100.0, 100.0, 1000.0, far], dtype)
    for their, our in zip(theirs(name, x), ours(name, x), strict=True):
        assert np.isfinite(our).all() or not np.isfinite(their).all()
        np.testing.assert_allclose(our[np.isfinite(their)], their[np.isfinite(their)], rtol=1e-6, atol=1e-30)
