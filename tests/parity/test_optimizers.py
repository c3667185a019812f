"""Test the gate of a run with another optimizer than AdamW: a correct port passes, and each fault is named."""

from __future__ import annotations

import pytest
from gates import TINY_REFORMER, PreparedGates, quiet, reformer_request

from models.families import FAMILIES
from models.operations import kernels
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.mutants import OF_ADAMW, catalogue
from toolkit.parity.mutants.shared_faults import OPTIMIZERS
from toolkit.parity.trials.mutation import optimizer_trials, try_mutants

#: A small model, because only the updates matter here; its position tables have three dimensions.
ONE_LAYER = {
    **TINY_REFORMER,
    "attn_layers": ["local"],
    "axial_pos_shape": [4, 8],
    "max_position_embeddings": 32,
    "local_attn_chunk_length": 8,
}


def make_trial_requests(**options):
    base_request = reformer_request(
        ONE_LAYER, training=TrainingSettings(weight_decay=0.1, max_grad_norm=0.001), **options
    )
    return list(optimizer_trials(base_request))


def test_correct_ports_pass_with_each_optimizer(tmp_path):
    requests = make_trial_requests()
    gates = PreparedGates(tmp_path / "jobs", requests)
    for request in requests:
        report, text = gates.run(request, tmp_path / request.training.optimizer)
        assert report.passed, text
        tensor_names = {comparison.name for comparison in report.verdict.comparisons}
        assert any(name.startswith("updated:") and name.endswith("#4") for name in tensor_names)
        assert any(name.startswith("moment:") for name in tensor_names) == (request.training.optimizer == "lion")


def test_the_faults_of_optimizers_have_unique_names():
    other_names = [mutant.name for family in FAMILIES for mutant in catalogue(family)]
    names = [mutant.name for mutants in OPTIMIZERS.values() for mutant in mutants]
    assert len({*names}) == len(names) and not {*names} & {*other_names}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_fault_of_an_optimizer_is_caught_and_named(kind):
    (request,) = (
        candidate for candidate in make_trial_requests(dtypes=("float64",)) if candidate.training.optimizer == kind
    )
    results = try_mutants(request, quiet())
    assert [trial.mutant for trial in results] == list(OPTIMIZERS[kind])
    assert [(trial.mutant.name, trial.culprit) for trial in results if not trial.passed] == []


@pytest.mark.slow
@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
def test_every_fault_of_adamws_loop_is_caught_in_float32_and_named():
    request = reformer_request(ONE_LAYER, training=TrainingSettings(weight_decay=0.1), dtypes=("float32",))
    results = try_mutants(request, quiet(), [mutant.name for mutant in OF_ADAMW])
    assert [(trial.mutant, trial.passed) for trial in results] == [(mutant, True) for mutant in OF_ADAMW]
