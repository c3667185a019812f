"""Test TOOLKIT_KERNELS: a port that uses Paddle's own operations on a CPU, as on a GPU, is gated and recorded."""

from __future__ import annotations

import json

import paddle
import pytest
from gates import TINY_REFORMER, PreparedGates, reformer_request, request_for
from test_train import recipe_file, train  # noqa: F401

from models.families import FAMILIES, part
from models.operations import compiled, ops
from models.operations.kernels import can_compile, chosen_kernels
from toolkit.commands.doctor import frameworks
from toolkit.parity.bundle import cache
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.request.build import job_of
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import trial_request

HEADS = [(model, head) for model in FAMILIES for head in part(model, "weights").HEADS]


def make_head_request(model: str, head: str) -> GateRequest:
    if model == "ctrl":
        return request_for(model, head, CTRL_TRIAL, 24, "heavy-tailed")
    labels = {"num_labels": 2} if head == "question_answering" else {}
    return reformer_request({**TINY_REFORMER, **labels}, head, "heavy-tailed")


@pytest.fixture(scope="module")
def prepared_gates(tmp_path_factory) -> PreparedGates:
    """Return gates of every head whose port uses Paddle's kernels."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TOOLKIT_KERNELS", "paddle")
        return PreparedGates(
            tmp_path_factory.mktemp("jobs"), [make_head_request(*model_and_head) for model_and_head in HEADS]
        )


@pytest.mark.slow
@pytest.mark.parametrize(("model", "head"), HEADS)
def test_every_head_passes_in_both_dtypes_with_paddles_kernels(prepared_gates, tmp_path, monkeypatch, model, head):
    monkeypatch.setenv("TOOLKIT_KERNELS", "paddle")
    report, text = prepared_gates.run(make_head_request(model, head), tmp_path)
    assert report.passed, report.summary()
    assert "; cpu; Paddle's own kernels; " in text
    saved_report = json.loads((tmp_path / "parity.json").read_text())
    assert saved_report["flags"]["TOOLKIT_KERNELS"] == "paddle" and saved_report["dtypes"] == ["float64", "float32"]


@pytest.mark.slow
def test_the_ports_process_uses_the_kernels_of_the_gate(prepared_gates, tmp_path, monkeypatch):
    """Only the last digits of its results differ."""
    one, ours = ("ctrl", "causal_lm"), {}
    for kernels in ("paddle", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kernels)
        gates = prepared_gates if kernels == "paddle" else PreparedGates(tmp_path / "jobs", [make_head_request(*one)])
        report, _ = gates.run(make_head_request(*one), tmp_path / kernels)
        ours[kernels] = {c.name: c.error for c in report.verdict.comparisons if c.dtype == "float32"}
    assert ours["paddle"].keys() == ours["composed"].keys()
    assert ours["paddle"] != ours["composed"]


def test_the_variable_selects_the_operations(monkeypatch):
    x = paddle.ones([2, 3])
    support_by_kernels = {}
    for kernels in ("composed", "paddle", ""):
        monkeypatch.setenv("TOOLKIT_KERNELS", kernels)
        support_by_kernels[kernels] = (ops.is_composed(x), ops.is_on_cpu(x), compiled.supports_compiled(x))
    has_numba = can_compile()
    assert support_by_kernels == {
        "composed": (True, True, False),
        "paddle": (False, True, False),
        "": (True, True, has_numba),
    }


def test_composed_operations_are_used_without_numba(monkeypatch):
    monkeypatch.setattr("models.operations.kernels.can_compile", lambda: False)
    monkeypatch.delenv("TOOLKIT_KERNELS", raising=False)
    assert chosen_kernels() == "composed" and not compiled.supports_compiled(paddle.ones([2]))
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    with pytest.raises(ValueError, match="TOOLKIT_KERNELS=compiled: needs Numba"):
        chosen_kernels()


def test_a_cached_verdict_is_not_used_for_other_kernels(monkeypatch):
    request = trial_request("ctrl", "random", 0)
    keys = {}
    for kernels in ("composed", "paddle", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kernels)
        key = cache.key_of_request(job_of(request), request.batch, request.weights, None)
        assert keys.setdefault(kernels, key) == key
    assert keys["composed"] != keys["paddle"]


def test_a_run_records_its_kernels(recipe_file, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TOOLKIT_KERNELS", "paddle")
    folder = train(recipe_file, tmp_path / "run", "train.max_steps=1")
    assert json.loads((folder / "versions.json").read_text())["flags"]["TOOLKIT_KERNELS"] == "paddle"


def test_an_invalid_value_is_reported_in_one_line(recipe_file, tmp_path, monkeypatch, command_line):  # noqa: F811
    monkeypatch.setenv("TOOLKIT_KERNELS", "fast")
    for arguments in (
        ("finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}"),
        ("parity", "--model", "ctrl", "--layers", "1", "--output", tmp_path / "run"),
    ):
        status, _, error = command_line(*arguments)
        assert (
            status == 2 and error == "error: TOOLKIT_KERNELS=fast: is no choice; there are compiled, composed, paddle\n"
        )
        assert not list(tmp_path.rglob("*.json"))


def test_doctor_warns_of_paddles_kernels(monkeypatch):
    assert [
        environment_check
        for environment_check in frameworks.check_environment()
        if environment_check.check == "kernels"
    ] == []
    monkeypatch.setenv("TOOLKIT_KERNELS", "paddle")
    [kernels_check] = [
        environment_check
        for environment_check in frameworks.check_environment()
        if environment_check.check == "kernels"
    ]
    assert kernels_check.state == "warn" and kernels_check.remedy == "unset TOOLKIT_KERNELS"
