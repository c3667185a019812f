"""Test losses against torch's, with ignored labels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import paddle
import pytest
import torch

from models.operations import losses


@pytest.mark.parametrize(
    ("dtype", "shape", "count", "problem"),
    [
        ("int64", [4], 3, "single_label_classification"),
        ("int32", [4], 3, "single_label_classification"),
        ("float32", [4, 3], 3, "multi_label_classification"),
        ("float32", [4], 1, "regression"),
        ("int64", [4], 1, "regression"),
    ],
)
def test_the_labels_determine_an_unset_problem_type(dtype, shape, count, problem):
    config = SimpleNamespace(problem_type=None, num_labels=count)
    logits = paddle.to_tensor(np.random.default_rng(0).standard_normal([4, count]).astype("float32"))
    labels = paddle.to_tensor(np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    loss = losses.classification(config, logits, labels if count > 1 else labels.astype("float32"))
    assert config.problem_type == problem and np.isfinite(float(loss))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("labels", [[2, 0, 1, 4], [2, -100, -100, 4], [-100, -100, -100, -100]])
def test_ignored_labels_do_not_count_and_without_labels_the_loss_is_nan(labels, dtype):
    scores = np.random.default_rng(0).standard_normal((4, 5)).astype(dtype)
    theirs = torch.tensor(scores, requires_grad=True)
    expected_loss = torch.nn.functional.cross_entropy(theirs, torch.tensor(labels))
    expected_loss.backward()
    ours = paddle.to_tensor(scores, stop_gradient=False)
    loss = losses.cross_entropy(ours, paddle.to_tensor(labels))
    loss.backward()
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(loss.numpy(), expected_loss.detach().numpy(), rtol=tolerance)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=tolerance, atol=tolerance)
    assert np.isnan(expected_loss.item()) == (not any(label >= 0 for label in labels))
