"""TOOLKIT_KERNELS: the port with Paddle's own operations on a CPU, as a GPU takes them, gated and recorded."""

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


def of_head(model: str, head: str) -> GateRequest:
    if model == "ctrl":
        return request_for(model, head, CTRL_TRIAL, 24, "heavy-tailed")
    labels = {"num_labels": 2} if head == "question_answering" else {}
    return reformer_request({**TINY_REFORMER, **labels}, head, "heavy-tailed")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> PreparedGates:
    """Gates of every head whose port's process was told to take Paddle's kernels."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TOOLKIT_KERNELS", "paddle")
        return PreparedGates(tmp_path_factory.mktemp("jobs"), [of_head(*one) for one in HEADS])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "head"), HEADS)
def test_every_head_agrees_with_the_reference_in_both_dtypes_with_paddles_kernels(
    prepared, tmp_path, monkeypatch, model, head
):
    monkeypatch.setenv("TOOLKIT_KERNELS", "paddle")
    report, text = prepared.run(of_head(model, head), tmp_path)
    assert report.passed, report.summary()
    assert "; cpu; Paddle's own kernels; " in text
    stored = json.loads((tmp_path / "parity.json").read_text())
    assert stored["flags"]["TOOLKIT_KERNELS"] == "paddle" and stored["dtypes"] == ["float64", "float32"]


@pytest.mark.slow
def test_the_ports_process_takes_the_kernels_that_the_gate_was_called_with(prepared, tmp_path, monkeypatch):
    """What it computes differs in its last digits, and in nothing else."""
    one, ours = ("ctrl", "causal_lm"), {}
    for kernels in ("paddle", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kernels)
        gates = prepared if kernels == "paddle" else PreparedGates(tmp_path / "jobs", [of_head(*one)])
        report, _ = gates.run(of_head(*one), tmp_path / kernels)
        ours[kernels] = {c.name: c.error for c in report.verdict.comparisons if c.dtype == "float32"}
    assert ours["paddle"].keys() == ours["composed"].keys()
    assert ours["paddle"] != ours["composed"]


def test_the_choice_decides_which_operation_is_taken(monkeypatch):
    x = paddle.ones([2, 3])
    found = {}
    for kernels in ("composed", "paddle", ""):
        monkeypatch.setenv("TOOLKIT_KERNELS", kernels)
        found[kernels] = (ops.is_composed(x), ops.is_on_cpu(x), compiled.supports_compiled(x))
    own = can_compile()
    assert found == {"composed": (True, True, False), "paddle": (False, True, False), "": (True, True, own)}


def test_without_numba_the_composed_operations_are_taken(monkeypatch):
    monkeypatch.setattr("models.operations.kernels.can_compile", lambda: False)
    monkeypatch.delenv("TOOLKIT_KERNELS", raising=False)
    assert chosen_kernels() == "composed" and not compiled.supports_compiled(paddle.ones([2]))
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    with pytest.raises(ValueError, match="TOOLKIT_KERNELS=compiled: needs Numba"):
        chosen_kernels()


def test_a_verdict_is_not_remembered_for_other_kernels(monkeypatch):
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


def test_another_choice_is_one_line(recipe_file, tmp_path, monkeypatch, command_line):  # noqa: F811
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
    assert [one for one in frameworks.check_environment() if one.check == "kernels"] == []
    monkeypatch.setenv("TOOLKIT_KERNELS", "paddle")
    [found] = [one for one in frameworks.check_environment() if one.check == "kernels"]
    assert found.state == "warn" and found.remedy == "unset TOOLKIT_KERNELS"
