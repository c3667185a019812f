"""Losses against torch's own, with labels that are to be ignored."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch

from models.operations import losses


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("labels", [[2, 0, 1, 4], [2, -100, -100, 4], [-100, -100, -100, -100]])
def test_the_mean_is_over_the_labels_that_count_and_of_none_it_is_nan_without_a_gradient(labels, dtype):
    scores = np.random.default_rng(0).standard_normal((4, 5)).astype(dtype)
    theirs = torch.tensor(scores, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(theirs, torch.tensor(labels))
    expected.backward()
    ours = paddle.to_tensor(scores, stop_gradient=False)
    loss = losses.cross_entropy(ours, paddle.to_tensor(labels))
    loss.backward()
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(loss.numpy(), expected.detach().numpy(), rtol=tolerance)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=tolerance, atol=tolerance)
    assert np.isnan(expected.item()) == (not any(label >= 0 for label in labels))
