"""Test the optimizers of training and of the gate against textbook formulas.

Clipping is compared with torch's, decay with transformers'.
"""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from models.operations import compiled, kernels
from toolkit.training.optimizer import OPTIMIZERS, ClipGradByGlobalNorm, create, decayed_parameters, scale_in_place


class Network(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layer_norm = paddle.nn.LayerNorm(3)
        self.output = paddle.nn.Linear(3, 2)


def test_biases_and_normalization_do_not_decay():
    network = Network()
    names = {parameter.name: name for name, parameter in network.named_parameters()}
    assert {names[name] for name in decayed_parameters(network)} == {"output.weight"}


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_three_steps_of_adamw_are_correct_in_double_precision(max_grad_norm):
    # exact in float32, the dtype of Paddle's kernel
    options = dict(beta1=0.875, beta2=0.96875, epsilon=2.0**-20, weight_decay=0.125)
    rate, draw = 2.0**-7, np.random.default_rng(0)
    network = Network()
    network.to(dtype="float64")
    optimizer = create("adamw", network, rate, max_grad_norm=max_grad_norm, **options)
    parameters = dict(network.named_parameters())
    ours = {name: parameter.numpy() for name, parameter in parameters.items()}
    first, second = ({name: 0.0 for name in ours} for _ in range(2))
    for step in range(1, 4):
        gradients = {name: draw.standard_normal(value.shape) for name, value in ours.items()}
        sum((parameters[n] * paddle.to_tensor(g)).sum() for n, g in gradients.items()).backward()
        optimizer.step()
        optimizer.clear_grad()
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        scale = 1.0 if max_grad_norm is None else min(1.0, max_grad_norm / (norm + 1e-6))
        for name, gradient in gradients.items():
            first[name] = 0.875 * first[name] + 0.125 * scale * gradient
            second[name] = 0.96875 * second[name] + 0.03125 * (scale * gradient) ** 2
            update = first[name] / (1 - 0.875**step) / (np.sqrt(second[name] / (1 - 0.96875**step)) + 2.0**-20)
            decay = 0.125 if name == "output.weight" else 0.0
            ours[name] = ours[name] * (1 - rate * decay) - rate * update
            np.testing.assert_allclose(parameters[name].numpy(), ours[name], rtol=1e-13, atol=1e-16)


def test_a_shared_gradient_is_scaled_once():
    first, second = (paddle.create_parameter([2], "float32") for _ in range(2))
    shared_gradient = paddle.to_tensor([3.0, 4.0])
    clipped_pairs = ClipGradByGlobalNorm(1.0)([(first, shared_gradient), (second, shared_gradient)])
    for _, gradient in clipped_pairs:
        np.testing.assert_allclose(gradient.numpy(), np.array([3.0, 4.0]) / np.sqrt(50.0), rtol=1e-5)


def sgd(weight, gradient, rate, decay, state):
    state["v"] = 0.875 * state.get("v", 0) + gradient + decay * weight
    return weight - rate * state["v"]


def lion(weight, gradient, rate, decay, state):
    moment = state.get("m", np.zeros_like(weight))
    state["m"] = 0.96875 * moment + 0.03125 * gradient
    return weight - rate * (np.sign(0.875 * moment + 0.125 * gradient) + decay * weight)


def adafactor(weight, gradient, rate, decay, state):
    state["t"] = state.get("t", 0) + 1
    square, share = gradient**2, state["t"] ** -0.8
    for axis in range(-1, -1 - weight.ndim, -1):
        mean_square = square.mean(axis, keepdims=True) if weight.ndim > 1 else square
        state[axis] = (1 - share) * state.get(axis, 0) + share * mean_square
    moment = state[-1]
    if weight.ndim > 1:
        moment = state[-1] * state[-2] / max(state[-1].mean(), 2.0**-23)
    update = gradient / np.sqrt(np.maximum(moment, 2.0**-46))
    update /= max(1, np.sqrt((update**2).mean()))
    size = max(1e-3, np.sqrt((weight**2).mean())) * min(rate, state["t"] ** -0.5)
    return weight * (1 - rate * decay) - size * update


SETTINGS = {"sgd": {"momentum": 0.875}, "lion": {"beta1": 0.875, "beta2": 0.96875}, "adafactor": {}}


@pytest.mark.parametrize("rate", [2.0**-7, 0.625])  # above 1/sqrt(3), the bound of Adafactor's rate in its third step
@pytest.mark.parametrize("by_the_book", [sgd, lion, adafactor])
def test_three_steps_of_the_other_optimizers_are_correct_in_double_precision(by_the_book, rate):
    kind = by_the_book.__name__
    network = Network()
    network.to(dtype="float64")
    optimizer = create(kind, network, rate, weight_decay=0.125, max_grad_norm=0.5, **SETTINGS[kind])
    parameters = dict(network.named_parameters())
    ours = {name: parameter.numpy() for name, parameter in parameters.items()}
    states: dict[str, dict] = {name: {} for name in ours}
    draw = np.random.default_rng(0)
    for _ in range(3):
        gradients = {name: draw.standard_normal(value.shape) for name, value in ours.items()}
        sum((parameters[n] * paddle.to_tensor(g)).sum() for n, g in gradients.items()).backward()
        optimizer.step()
        optimizer.clear_grad()
        scale = 0.5 / (np.sqrt(sum((g**2).sum() for g in gradients.values())) + 1e-6)
        for name, gradient in gradients.items():
            decay = 0.125 if name == "output.weight" else 0.0
            ours[name] = by_the_book(ours[name], scale * gradient, rate, decay, states[name])
            np.testing.assert_allclose(parameters[name].numpy(), ours[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("width", [9, 3000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_gradients_are_scaled_like_by_a_product_to_the_last_bit(dtype, width):
    values = paddle.to_tensor(np.random.default_rng(0).standard_normal((70, width))).astype(dtype)
    factor = paddle.to_tensor(1 / 3).astype(dtype)
    scaled_values = values.clone()
    scale_in_place(scaled_values, factor)
    assert np.array_equal(scaled_values.astype("float64").numpy(), (values * factor).astype("float64").numpy())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_parameter_without_a_gradient_is_not_updated(kind):
    """Otherwise its moments of earlier steps would move it."""
    network = Network()
    settings = {**SETTINGS, "adamw": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}}[kind]
    optimizer = create(kind, network, 0.1, weight_decay=0.1, max_grad_norm=1.0, **settings)
    for parameters in (network.parameters(), network.output.parameters()):
        initial_gain = network.layer_norm.weight.numpy().copy()
        sum((parameter * parameter).sum() for parameter in parameters).backward()
        optimizer.step()
        optimizer.clear_grad()
        has_moved = not np.array_equal(network.layer_norm.weight.numpy(), initial_gain)
        assert has_moved == (len(parameters) == 4)


def test_large_and_small_gradients_are_scaled_by_the_same_norm():
    draw = np.random.default_rng(0)
    values = [draw.standard_normal(shape).astype("float32") for shape in ((2700, 61), (3,))]
    parameter_pairs = [(paddle.create_parameter(value.shape, "float32"), paddle.to_tensor(value)) for value in values]
    clipped_gradients = [gradient.numpy() for _, gradient in ClipGradByGlobalNorm(1.0)(parameter_pairs)]
    norm = np.sqrt(sum(np.square(value.astype("float64")).sum() for value in values))
    for value, clipped_gradient in zip(values, clipped_gradients, strict=True):
        np.testing.assert_allclose(clipped_gradient, value / (norm + 1e-6), rtol=3e-7)


def test_gradients_below_the_norm_are_unchanged():
    parameter = paddle.create_parameter([2], "float32")
    ((_, gradient),) = ClipGradByGlobalNorm(10.0)([(parameter, paddle.to_tensor([3.0, 4.0]))])
    assert gradient.numpy().tolist() == [3.0, 4.0]


@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 100.0])
def test_compiled_adamw_equals_paddles_kernel(monkeypatch, max_grad_norm):
    """Test also a parameter without a gradient, and each implementation with a state of the other."""
    steps, loop = [], compiled.adamw_
    monkeypatch.setattr(compiled, "adamw_", lambda *updated_parameters: steps.append(1) or loop(*updated_parameters))
    draw = np.random.default_rng(0)
    gradients = [[draw.standard_normal(shape).astype("float32") for shape in ((3,), (3,), (3, 2))] for _ in range(6)]
    weight, results = draw.standard_normal((3, 2)).astype("float32"), []
    for kinds in (["compiled"] * 6, ["paddle"] * 6, ["compiled", "paddle"] * 3):
        network = Network()
        network.output.weight.set_value(weight)
        network.layer_norm.bias.optimize_attr["learning_rate"] = 0.25
        parameters = [network.layer_norm.weight, network.layer_norm.bias, network.output.weight]
        settings = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
        optimizer = create("adamw", network, 0.01, weight_decay=0.1, max_grad_norm=max_grad_norm, **settings)
        for step, kernel in enumerate(kinds):
            monkeypatch.setenv("TOOLKIT_KERNELS", kernel)
            # in some steps, the first parameter has no gradient
            updated_parameters = list(zip(parameters, gradients[step], strict=True))[step % 2 :]
            sum((parameter * paddle.to_tensor(gradient)).sum() for parameter, gradient in updated_parameters).backward()
            optimizer.step()
            optimizer.clear_grad()
        results.append([parameter.numpy() for parameter in parameters])
    for compiled_value, paddle_value, mixed_value in zip(*results, strict=True):
        np.testing.assert_allclose(compiled_value, paddle_value, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(mixed_value, paddle_value, rtol=1e-6, atol=1e-7)
    assert not np.array_equal(results[0][2], weight) and len(steps) == 9
