"""Test train.label_smoothing: only training uses torch's smoothed loss, and the gate compares it."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch
from gates import PreparedGates, quiet, reformer_request
from test_class_weights import ONE_LAYER, WEIGHTS, Config, scores
from test_problem_types import write_recipe

from models.operations import losses
from toolkit.errors import UserError
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.mutants.shared_faults import LABEL_SMOOTHING
from toolkit.parity.reference import own_loss
from toolkit.parity.trials.mutation import smoothed_trials, try_mutants
from toolkit.recipe.load import load_recipe

LABELS = np.array([2, 0, -100, 1, 0])


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_smoothed_loss_and_its_gradient_equal_torchs_and_the_gates(weights, dtype):
    port_logits = paddle.to_tensor(scores(dtype), stop_gradient=False)
    torch_logits = torch.from_numpy(scores(dtype)).requires_grad_()
    class_weights = None if weights is None else np.array(weights, np.float32)
    loss = losses.classification(
        Config("single_label_classification"), port_logits, paddle.to_tensor(LABELS), class_weights, 0.1
    )
    of_torch = None if weights is None else torch.tensor(weights, dtype=torch_logits.dtype)
    torch_loss = torch.nn.CrossEntropyLoss(weight=of_torch, label_smoothing=0.1)(torch_logits, torch.from_numpy(LABELS))
    loss.backward()
    torch_loss.backward()
    digits = {"float64": 1e-14, "float32": 2e-6}[dtype]
    np.testing.assert_allclose(float(loss), torch_loss.item(), rtol=digits)
    np.testing.assert_allclose(port_logits.grad.numpy(), torch_logits.grad.numpy(), rtol=digits, atol=digits)
    gate_loss = own_loss.cross_entropy(scores(dtype), LABELS, -100, weights, 0.1)
    np.testing.assert_allclose(gate_loss.value, torch_loss.item(), rtol=digits)


def test_smoothing_is_for_one_label_per_text(tmp_path):
    path = write_recipe(tmp_path, "multi_label")
    with pytest.raises(UserError, match=r"label_smoothing: is for data.problem_type single_label, not for multi_"):
        load_recipe(path, ["train.label_smoothing=0.1"])


def request_with_smoothing(**options):
    plain = reformer_request(ONE_LAYER, training=TrainingSettings(max_grad_norm=0.001), **options)
    (request,) = smoothed_trials(plain)
    return request


@pytest.mark.slow
def test_a_correct_port_with_smoothed_labels_passes_in_both_dtypes(tmp_path):
    request = request_with_smoothing()
    report, text = PreparedGates(tmp_path / "jobs", [request]).run(request, tmp_path / "report")
    assert report.passed, text
    assert report.reference.own_loss.units < report.reference.own_loss.allowed / 3


@pytest.mark.slow
def test_every_fault_of_smoothing_is_caught_and_named():
    trials = try_mutants(request_with_smoothing(dtypes=("float64",)), quiet())
    assert [trial.mutant for trial in trials] == list(LABEL_SMOOTHING)
    assert [(t.mutant.name, t.verdict, t.culprit, t.operation) for t in trials if not t.passed] == []
