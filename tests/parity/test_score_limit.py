"""Test losses of a port in Paddle with scores more than 64 below the largest score: they are as exact as torch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import pytest
import torch
from paddle import _C_ops
from paddle.nn import functional as ported
from torch.nn import functional as original

from toolkit.parity.families.pair import score_limit

#: Largest relative distance of a loss and of its gradient from torch's, in units of the dtype.
MAX_DISTANCE = 4
DRAW = np.random.default_rng(0)
#: Scores of 7 examples and 11 classes, with distances of several hundred.
FAR_SCORES = 80 * DRAW.standard_normal((7, 11))
LABELS = DRAW.integers(0, 11, 7)
IGNORED_LABELS = np.where(np.arange(7) == 2, -100, LABELS)
CLASS_WEIGHTS = DRAW.random(11)
#: Powers of 2 and zeros, which add up to exactly 1.
PROBABILITIES = np.tile([0, 0.5, 0, 0.125, 0, 0, 0.25, 0, 0, 0.125, 0], (7, 1))

#: By name, the loss of the port and of the reference, as functions of scores.
LOSSES: dict[str, tuple[Callable, Callable]] = {
    "labels": (
        lambda x: ported.cross_entropy(x, paddle.to_tensor(LABELS)),
        lambda x: original.cross_entropy(x, torch.tensor(LABELS)),
    ),
    "an ignored label": (
        lambda x: ported.cross_entropy(x, paddle.to_tensor(IGNORED_LABELS), reduction="none"),
        lambda x: original.cross_entropy(x, torch.tensor(IGNORED_LABELS), reduction="none"),
    ),
    "weighted labels": (
        lambda x: ported.cross_entropy(
            x, paddle.to_tensor(LABELS), weight=paddle.to_tensor(CLASS_WEIGHTS).astype(x.dtype), reduction="none"
        ),
        lambda x: original.cross_entropy(
            x, torch.tensor(LABELS), weight=torch.tensor(CLASS_WEIGHTS).to(x), reduction="none"
        ),
    ),
    "probabilities": (
        lambda x: ported.cross_entropy(
            x, paddle.to_tensor(PROBABILITIES).astype(x.dtype), soft_label=True, reduction="sum"
        ),
        lambda x: original.cross_entropy(x, torch.tensor(PROBABILITIES).to(x), reduction="sum"),
    ),
    "classes on another axis": (
        lambda x: ported.cross_entropy(x.T.unsqueeze(0), paddle.to_tensor(LABELS[None]), axis=1, reduction="none"),
        lambda x: original.cross_entropy(x.T[None], torch.tensor(LABELS[None]), reduction="none"),
    ),
    "log-softmax": (lambda x: ported.log_softmax(x, 0), lambda x: original.log_softmax(x, 0)),
    "log-softmax and labels": (
        lambda x: ported.nll_loss(ported.log_softmax(x, -1), paddle.to_tensor(LABELS)),
        lambda x: original.nll_loss(original.log_softmax(x, -1), torch.tensor(LABELS)),
    ),
}


@pytest.fixture(autouse=True)
def reset_limited_lines(monkeypatch):
    """Restore Paddle's functions as in a user's port, and forget the limited lines."""
    monkeypatch.setattr(score_limit, "limited_lines", [])
    for name in ("cross_entropy_with_softmax", "log_softmax"):
        monkeypatch.setattr(_C_ops, name, score_limit.remove_limit(name, getattr(_C_ops, name)))


def compute_port_loss(loss: Callable, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a loss of the port, and the gradient of its sum with respect to the scores."""
    leaf = paddle.to_tensor(scores, stop_gradient=False)
    value = loss(leaf)
    value.sum().backward()
    return value.numpy(), leaf.grad.numpy()


def compute_reference_loss(loss: Callable, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a loss of the reference, and the gradient of its sum with respect to the scores."""
    leaf = torch.tensor(scores, requires_grad=True)
    value = loss(leaf)
    value.sum().backward()
    return value.detach().numpy(), leaf.grad.numpy()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_far_scores_equals_the_references(name, dtype):
    port, reference = LOSSES[name]
    scores = FAR_SCORES.astype(dtype)
    for ours, theirs in zip(compute_port_loss(port, scores), compute_reference_loss(reference, scores), strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= MAX_DISTANCE * np.finfo(dtype).eps * np.abs(theirs).max()
    [line] = score_limit.limited_lines
    assert line.startswith("test_score_limit.py:")


@pytest.mark.parametrize("name", LOSSES)
def test_close_scores_are_computed_by_the_kernel(name):
    compute_port_loss(LOSSES[name][0], FAR_SCORES / 20)
    assert score_limit.limited_lines == []


def test_only_a_label_beyond_the_limit_changes_a_loss():
    scores = np.array([[0.0, -70.0, -3.0], [0.0, -1.0, -900.0]])
    losses, _ = compute_port_loss(lambda x: ported.cross_entropy(x, paddle.to_tensor([2, 1]), reduction="none"), scores)
    expected_losses = np.array([3, 1]) + np.log1p(np.exp([-3.0, -1.0]))
    assert np.abs(losses - expected_losses).max() < 1e-14 and score_limit.limited_lines == []


def test_a_masked_score_stays_masked():
    logarithms, _ = compute_port_loss(lambda x: ported.log_softmax(x, -1), np.array([[1.0, -np.inf, 0.0]]))
    assert logarithms[0, 1] == -np.inf and np.isfinite(logarithms[0, [0, 2]]).all()


def test_empty_scores_have_no_loss():
    logarithms, gradients = compute_port_loss(lambda x: ported.log_softmax(x, -1), np.zeros((0, 3)))
    assert logarithms.shape == gradients.shape == (0, 3)


def test_a_loss_can_be_traced_into_a_graph():
    def compute(scores):
        return ported.log_softmax(scores, -1)

    scores = paddle.to_tensor(FAR_SCORES / 20)
    graph_output = paddle.jit.to_static(compute, full_graph=True)(scores)
    assert (graph_output == compute(scores)).all()
