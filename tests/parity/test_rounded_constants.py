"""Test that the reference with rounded constants equals Paddle's kernels in float64, to the last digits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import pytest
import torch
from paddle.nn import functional as ported
from torch.nn import functional as original

from toolkit.parity.families.pair.reference_patches import round_epsilons
from toolkit.parity.reference.rounded_constants import ConstantRounding

#: Largest relative distance of the rounded reference from Paddle.
MAX_DISTANCE = 2e-14
#: Smallest relative effect of the rounding of a constant on a value or a gradient.
MIN_EFFECT = 3e-14
LABELS = np.array([0, 2, 1, 2, 0])


def compute_distances(function: Callable, port: Callable, x: np.ndarray, is_rounded: bool) -> tuple[float, float]:
    """Return the relative distances of a torch function's value and gradient from its port's."""
    weights = np.random.default_rng(1)
    leaf = paddle.to_tensor(x, stop_gradient=False)
    value = port(leaf)
    factors = weights.standard_normal(value.shape)
    (value * paddle.to_tensor(factors)).sum().backward()
    theirs = torch.tensor(x, requires_grad=True)

    def compute() -> torch.Tensor:
        result = function(theirs)
        (result * torch.tensor(factors)).sum().backward()
        return result

    if is_rounded:
        with ConstantRounding():
            result = compute()
    else:
        result = compute()
    pairs = [(result.detach().numpy(), value.numpy()), (theirs.grad.numpy(), leaf.grad.numpy())]
    value_apart, gradient_apart = (float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    return value_apart, gradient_apart


def check_rounding(function: Callable, port: Callable, x: np.ndarray) -> None:
    """Check that only rounded constants lie between a function and its port, and that the rounded function has them."""
    assert max(compute_distances(function, port, x, is_rounded=False)) > MIN_EFFECT
    assert max(compute_distances(function, port, x, is_rounded=True)) < MAX_DISTANCE


def make_numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize("order", [0.5, 1, 1.3, 1.5, 2, 2.5, 3, 4])
@pytest.mark.parametrize(("axis", "keeps_axis"), [(-1, True), (-1, False), (0, True), (None, True)])
def test_a_norm_is_changed_only_in_its_own_backward(order, axis, keeps_axis):
    def divide_by_norm(x, norm):
        norm = norm if keeps_axis else norm.unsqueeze(axis)
        return x / norm + norm

    check_rounding(
        lambda x: divide_by_norm(x, x.norm(p=order, dim=axis, keepdim=keeps_axis)),
        lambda x: divide_by_norm(x, paddle.norm(x, p=order, axis=axis, keepdim=keeps_axis)),
        make_numbers(3, 4, 5) * (1e-3 if 1 <= order <= 2 else 0.1 if order > 2 else 1e4),
    )


NORMS = {
    "frobenius": (
        lambda x: x / torch.norm(x, p="fro", dim=(0, 1), keepdim=True),
        lambda x: x / paddle.norm(x, p="fro", axis=[0, 1], keepdim=True),
    ),
    "of a norm": (
        lambda x: x / x.norm(dim=-1).norm(),
        lambda x: x / paddle.norm(paddle.norm(x, axis=-1)),
    ),
    "of two axes": (
        lambda x: x / x.norm(dim=-1, keepdim=True) * x.norm(p=1, dim=0, keepdim=True),
        lambda x: x / paddle.norm(x, axis=-1, keepdim=True) * paddle.norm(x, p=1, axis=0, keepdim=True),
    ),
    "distance": (
        lambda x: x * torch.dist(x, x.flip(0) / 2, 3),
        lambda x: x * paddle.dist(x, x.flip(0) / 2, 3),
    ),
    "normalize": (lambda x: original.normalize(x, dim=-1), lambda x: ported.normalize(x, axis=-1)),
}


@pytest.mark.parametrize("name", NORMS)
def test_every_function_with_a_norm_has_its_backward(name):
    check_rounding(*NORMS[name], make_numbers(3, 4, 5) * 0.001)


def test_normalize_adds_its_own_epsilon():
    check_rounding(
        lambda x: original.normalize(x, dim=-1, eps=2**-24),
        lambda x: ported.normalize(x, axis=-1, epsilon=2**-24),
        make_numbers(3, 4, 5),
    )


INTERPOLATIONS = {"linear": ("NCW", 1), "bilinear": ("NCHW", 2), "bicubic": ("NCHW", 2), "trilinear": ("NCDHW", 3)}
SIZES = (
    {"scale": 1.5}, {"scale": 1.7}, {"scale": 0.7}, {"size": 7}, {"size": 11}, {"size": 8, "align_corners": True},
    {"size": 18, "align_corners": True}, {"scale": 1.7, "align_corners": True},
)  # fmt: skip


@pytest.mark.parametrize("mode", INTERPOLATIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_an_interpolation_has_the_weights_of_its_kernel(mode, size):
    data_format, axes = INTERPOLATIONS[mode]
    corners = size.get("align_corners", False)
    length = {"size": [size["size"]] * axes} if "size" in size else {"scale_factor": [size["scale"]] * axes}
    check_rounding(
        lambda x: original.interpolate(x, mode=mode, align_corners=corners, **length),
        lambda x: ported.interpolate(x, mode=mode, align_corners=corners, data_format=data_format, **length),
        make_numbers(1, 2, *(4, 5, 6)[3 - axes :]),
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_an_axis_of_constant_length_changes_only_by_rounding(mode):
    """With a scale of 1.1, 5 and 10 elements become 5 and 11.

    Torch copies along the first axis unless the mode is cubic.
    """
    x = torch.tensor(make_numbers(1, 2, 5, 10))
    exact = original.interpolate(x, scale_factor=1.1, mode=mode)
    with ConstantRounding():
        rounded_output = original.interpolate(x, scale_factor=1.1, mode=mode)
    assert 0 < float((exact - rounded_output).abs().max()) < 1e-5


POOLS = {
    "2d": (
        lambda x: original.avg_pool2d(x, 3, 1, 1),
        lambda x: ported.avg_pool2d(x, 3, 1, 1, exclusive=False),
    ),
    "2d without the padding": (
        lambda x: original.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: ported.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    ),
    "adaptive": (lambda x: original.adaptive_avg_pool2d(x, (3, 2)), lambda x: ported.adaptive_avg_pool2d(x, [3, 2])),
    "adaptive to one": (lambda x: original.adaptive_avg_pool2d(x, 1), lambda x: ported.adaptive_avg_pool2d(x, 1)),
    "area": (
        lambda x: original.interpolate(x, size=3, mode="area"),
        lambda x: ported.interpolate(x, size=[3, 3], mode="area"),
    ),
    "hard sigmoid": (original.hardsigmoid, ported.hardsigmoid),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_multiplies_by_a_rounded_count_in_its_backward(name):
    check_rounding(*POOLS[name], make_numbers(1, 2, 5, 7))


def compose_with_ignored(x: paddle.Tensor) -> paddle.Tensor:
    labels = paddle.to_tensor(LABELS)
    losses = ported.cross_entropy(x, labels, label_smoothing=0.1, reduction="none").flatten()
    is_counted = (labels != 0).astype(losses.dtype)
    return (losses * is_counted).sum() / is_counted.sum()


def compose_with_weights(x: paddle.Tensor) -> paddle.Tensor:
    labels, weights = paddle.to_tensor(LABELS), paddle.to_tensor([0.5, 1.0, 2.0], dtype=x.dtype)
    smoothed_labels = ported.label_smooth(ported.one_hot(labels, 3), epsilon=0.1).astype(x.dtype)
    return -(smoothed_labels * weights * ported.log_softmax(x, -1)).sum() / weights[labels].sum()


def make_cross_entropy(**options) -> Callable:
    return lambda x: original.cross_entropy(x, torch.tensor(LABELS), **options)


#: Probabilities with the rounding of float32.
SOFT_LABELS = (np.random.default_rng(2).dirichlet([1, 1, 1], 5)).astype(np.float32).astype(np.float64)
LOSSES = {
    "mean": (
        make_cross_entropy(label_smoothing=0.1),
        lambda x: ported.cross_entropy(x, paddle.to_tensor(LABELS), label_smoothing=0.1),
    ),
    "sum": (
        make_cross_entropy(label_smoothing=0.3, reduction="sum"),
        lambda x: ported.cross_entropy(x, paddle.to_tensor(LABELS), label_smoothing=0.3, reduction="sum"),
    ),
    "ignored": (make_cross_entropy(label_smoothing=0.1, ignore_index=0), compose_with_ignored),
    "weights": (
        make_cross_entropy(label_smoothing=0.1, weight=torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)),
        compose_with_weights,
    ),
    "soft": (
        lambda x: original.cross_entropy(x, torch.tensor(SOFT_LABELS)),
        lambda x: ported.cross_entropy(x, paddle.to_tensor(SOFT_LABELS), soft_label=True),
    ),
    "soft and smoothed": (
        lambda x: original.cross_entropy(x, torch.tensor(SOFT_LABELS), label_smoothing=0.1),
        lambda x: ported.cross_entropy(x, paddle.to_tensor(SOFT_LABELS), soft_label=True, label_smoothing=0.1),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_smoothed_labels_equal_the_kernels(name):
    check_rounding(*LOSSES[name], make_numbers(5, 3))


def test_labels_that_are_not_probabilities_keep_their_gradient():
    with ConstantRounding() as constant_rounding:
        scores = torch.tensor(make_numbers(5, 3), requires_grad=True)
        original.cross_entropy(scores, torch.tensor(SOFT_LABELS * 1.01)).backward()
    assert "total_of_labels" not in " ".join(constant_rounding.descriptions)


PORT = """
FRAMEWORK


class Net(MODULE):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x, y):
        x = self.first(x)
        return functional.cross_entropy(self.last(BODY), y, label_smoothing=SMOOTHING)


def build(config):
    return Net()
"""
BATCH = """

def batch(config, rng):
    return {"x": rng.standard_normal((5, 6)), "y": rng.integers(0, 3, 5)}
"""
PORTS = {
    "right": ("x / x.norm(p=2, axis=-1, keepdim=True)", "0.1", "PARITY"),
    "norm without a gradient": (
        "x / x.norm(p=2, axis=-1, keepdim=True).detach()",
        "0.1",
        "DRIFT the backward into output of first (",
    ),
    "other smoothing": ("x / x.norm(p=2, axis=-1, keepdim=True)", "0.1 * (1 + 1e-5)", "DRIFT label_smooth ("),
}


@pytest.mark.parametrize("name", PORTS)
def test_rounded_constants_pass_and_wrong_ones_do_not(name, command_line, tmp_path):
    body, smoothing, headline = PORTS[name]
    reference = PORT.replace("FRAMEWORK", "from torch import nn\nfrom torch.nn import functional")
    reference = reference.replace("MODULE", "nn.Module").replace("SMOOTHING", "0.1")
    port = PORT.replace("FRAMEWORK", "from paddle import nn\nfrom paddle.nn import functional")
    port = port.replace("MODULE", "nn.Layer").replace("SMOOTHING", smoothing)
    (tmp_path / "reference.py").write_text(reference.replace("BODY", "x / x.norm(p=2, dim=-1, keepdim=True)") + BATCH)
    (tmp_path / "port.py").write_text(port.replace("BODY", body))
    sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    status, out, err = command_line("parity", *sides, "--output", tmp_path)
    assert out.startswith(headline) and status == headline.startswith("DRIFT"), out + err


#: By name, torch's norm and Paddle's, of numbers (N, channels, length) with a small variance.
EPSILONS = {
    "layer norm": (
        lambda x: original.layer_norm(x, [5], eps=1e-6),
        lambda x: ported.layer_norm(x, [5], epsilon=1e-6),
    ),
    "layer norm by default": (lambda x: original.layer_norm(x, [5]), lambda x: ported.layer_norm(x, [5])),
    "batch norm": (
        lambda x: original.batch_norm(x, torch.zeros(4).to(x), torch.ones(4).to(x), training=True),
        lambda x: ported.batch_norm(
            x, paddle.zeros([4], x.dtype), paddle.ones([4], x.dtype), *make_identity_affine(x), training=True
        ),
    ),
    "instance norm": (
        lambda x: original.instance_norm(x),
        lambda x: ported.instance_norm(x, weight=make_identity_affine(x)[0], bias=make_identity_affine(x)[1]),
    ),
}


def make_identity_affine(x: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the gain and the bias of a norm of 4 channels that change nothing."""
    return paddle.ones([4], x.dtype), paddle.zeros([4], x.dtype)


@pytest.mark.parametrize("name", EPSILONS)
def test_a_norm_has_the_epsilon_of_paddles_kernel_whatever_module_calls_it(name):
    function, port = EPSILONS[name]
    x = 1e-3 * make_numbers(3, 4, 5)
    assert max(compute_distances(function, port, x, is_rounded=False)) > MIN_EFFECT
    with round_epsilons():
        assert max(compute_distances(function, port, x, is_rounded=False)) < MAX_DISTANCE
    assert max(compute_distances(function, port, x, is_rounded=False)) > MIN_EFFECT


LAYER_NORM = "functional.layer_norm(x, [12])"
#: Each port computes the norm from single operations, with this epsilon.
OWN_NORM = "(x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + EPSILON) ** 0.5"


@pytest.mark.parametrize(("epsilon", "headline"), [("1e-5", "PARITY"), ("1.0001e-5", "DRIFT ")])
def test_a_norm_of_single_operations_has_the_exact_epsilon(epsilon, headline, command_line, tmp_path):
    for side, framework, module, body in (
        ("reference", "torch", "nn.Module", LAYER_NORM),
        ("port", "paddle", "nn.Layer", OWN_NORM.replace("EPSILON", epsilon)),
    ):
        code = PORT.replace("FRAMEWORK", f"from {framework} import nn\nfrom {framework}.nn import functional")
        code = code.replace("MODULE", module).replace("SMOOTHING", "0.0").replace("BODY", body)
        (tmp_path / f"{side}.py").write_text(code + (BATCH if side == "reference" else ""))
    sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    status, out, err = command_line("parity", *sides, "--output", tmp_path)
    assert out.startswith(headline) and status == headline.startswith("DRIFT"), out + err
    assert ("the epsilon 1e-05 of layer_norm" in out) == (epsilon == "1e-5"), out
