"""A reference that is itself wrong: said to be so, at its line, and never laid at the port's door."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from models.families import part
from toolkit.errors import Inconclusive
from toolkit.parity.gate import Report, run_gate
from toolkit.parity.job import bundle
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.synthetic import StressWeights, random_batch
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.verdict import Finding, Verdict
from toolkit.parity.reference import own_loss
from toolkit.parity.trials.mutation import TRIALS, trial_request

#: In a layer's forward, as a careless cast in the reference's code would be.
CAST = """
from transformers.models.{family} import modeling_{family} as modeling
original = modeling.{layer}.forward
def forward(self, hidden_states, *args, **kwargs):
    hidden_states = hidden_states.to(torch.float32).to(hidden_states.dtype)  # here
    return original(self, hidden_states, *args, **kwargs)
modeling.{layer}.forward = forward
"""
#: A cast that float64 survives: what it is used for does not reach any tensor.
HARMLESS_CAST = CAST.replace("hidden_states = hidden_states.to(torch.float32).to(hidden_states.dtype)",
                             "hidden_states.to(torch.float32)")  # fmt: skip
SHIFTED_TWICE = """
from transformers.loss import loss_utils
def twice(logits, labels, vocab_size, **kwargs):  # here
    labels = torch.nn.functional.pad(labels, (0, 2), value=-100)[..., 2:]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, vocab_size), labels.reshape(-1))
loss_utils.LOSS_MAPPING["ForCausalLM"] = twice
"""
OVER_ALL = """
from transformers.loss import loss_utils
right = loss_utils.LOSS_MAPPING["ForCausalLM"]
def over_all(logits, labels, vocab_size, **kwargs):  # here
    return right(logits, labels, vocab_size) * (labels[:, 1:] != -100).sum() / labels[:, 1:].numel()
loss_utils.LOSS_MAPPING["ForCausalLM"] = over_all
"""


def broken(folder: Path, fault: str) -> tuple[str, str]:
    """An interpreter in which the reference has a fault, and the source line of that."""
    code = (
        f"import runpy, sys\nimport torch\n{fault}\nrunpy.run_module('toolkit.parity.reference', run_name='__main__')\n"
    )
    (folder / "fault.py").write_text(code)
    line = next(number for number, text in enumerate(code.splitlines(), start=1) if text.endswith("# here"))
    python = folder / "python"
    faulty, other = f'{sys.executable} {folder}/fault.py "$3"', f'{sys.executable} "$@"'
    python.write_text(f'#!/bin/sh\ncase "$1" in -m) exec {faulty};; esac\nexec {other}\n')
    python.chmod(0o755)
    return str(python), f"fault.py:{line}"


def run(request: GateRequest, folder: Path) -> tuple[Report, str, dict]:
    out = io.StringIO()
    report = run_gate(request, folder / "out", Console(file=out, width=200))
    return report, out.getvalue(), json.loads((folder / "out/parity.json").read_text())


def cast(family: str, layer: str, text: str = CAST) -> str:
    return text.format(family=family, layer=layer)


@pytest.mark.parametrize(
    ("model", "fault", "says"),
    [
        ("ctrl", cast("ctrl", "EncoderLayer"), "in less than float64"),
        ("reformer", cast("reformer", "LSHSelfAttention"), "in less than float64"),
        ("ctrl", SHIFTED_TWICE, "the reference's loss is"),
        ("ctrl", OVER_ALL, "the reference's loss is"),
    ],
)
def test_a_fault_of_the_reference_is_named_as_its_own(tmp_path, model, fault, says):
    python, line = broken(tmp_path, fault)
    request = dataclasses.replace(trial_request(model, "random", 0), reference_python=python)
    report, text, stored = run(request, tmp_path)
    assert text.startswith("INCONCLUSIVE the reference") and says in text.splitlines()[0]
    assert text.splitlines()[0].endswith(f": {line}")
    assert (stored["exit_status"], stored["passed"]) == (3, False) and report.exit_status == Inconclusive.exit_status
    assert stored["culprit"]["place"] == stored["culprit"]["name"] == line
    assert stored["summary"].startswith("inconclusive: the reference") and stored["summary"].endswith(line)
    assert line in [fault["name"] for fault in stored["reference_faults"]]
    assert "models/" not in text and "DRIFT" not in text


def test_a_fault_that_no_tensor_shows_is_a_note(tmp_path):
    python, line = broken(tmp_path, cast("ctrl", "EncoderLayer", HARMLESS_CAST))
    request = dataclasses.replace(trial_request("ctrl", "random", 0), reference_python=python)
    report, text, stored = run(request, tmp_path)
    assert report.passed and text.startswith("PARITY") and stored["exit_status"] == 0
    assert f"({line}); no tensor shows it" in text


def test_a_model_compared_stage_by_stage_shows_the_faults_of_its_reference_too(tmp_path):
    python, line = broken(tmp_path, cast("ctrl", "EncoderLayer"))
    trial = dataclasses.replace(trial_request("ctrl", "random", 0), streamed=True)
    assert run(dataclasses.replace(trial, reference_python=python), tmp_path)[0].culprit.name == line
    python, line = broken(tmp_path, SHIFTED_TWICE)
    assert run(dataclasses.replace(trial, reference_python=python), tmp_path)[0].culprit.name == line


@pytest.mark.parametrize(
    ("model", "head"), [(model, head) for model in TRIALS for head in part(model, "weights").HEADS]
)
def test_the_reference_as_it_is_released_is_clean(tmp_path, model, head):
    """But for ``.float()`` in its language-model loss, which is kept in float64 and said."""
    config = {**TRIALS[model][0], "num_labels": 2}
    if model == "reformer":
        config["is_decoder"] = head == "causal_lm"
    weights = StressWeights(part(model, "schema").resolve(config), head, 0, "heavy-tailed", model)
    batch = random_batch(config, head, 3, TRIALS[model][2], 0, model)
    bundle.record(GateRequest(model, head, config, weights, batch), tmp_path / "bundle", Console(file=io.StringIO()))
    result = json.loads((tmp_path / "bundle/reference/result.json").read_text())
    assert result["narrowings"] == []
    assert [leak.partition(":")[0] for leak in result["leaks"]] == ["loss_utils.py"] * (head == "causal_lm")
    loss = result["own_loss"]
    assert loss["units"] < loss["allowed"] / 10 and loss["given"] > 0
    assert loss["place"].partition(":")[2].isdigit()


def test_the_loss_is_that_of_its_definition():
    """Scores of 0 give log(number of classes); one of log(3) against two of 0 gives a probability of 3/5."""
    level = np.zeros((2, 4, 8))
    labels = np.array([[1, 2, 3, -100], [-100, 5, 6, 7]])
    for head in ("causal_lm", "masked_lm"):
        assert own_loss.of(head, {"logits": level}, {"labels": labels}).value == pytest.approx(math.log(8), rel=1e-15)
    uneven = np.zeros((1, 3, 3))
    uneven[0, 0, 2] = math.log(3)
    labels = np.array([[0, 2, -100]])  # shifted: position 0 predicts 2, and position 1 nothing
    assert own_loss.of("causal_lm", {"logits": uneven}, {"labels": labels}).value == pytest.approx(-math.log(3 / 5))
    unshifted = own_loss.of("masked_lm", {"logits": uneven}, {"labels": labels}).value
    assert unshifted == pytest.approx((-math.log(1 / 5) + math.log(3)) / 2)

    starts, ends = np.array([[math.log(3), 0.0, 0.0]]), np.zeros((1, 3))
    scores = {"start_logits": starts, "end_logits": ends}
    found = own_loss.of(
        "question_answering", scores, {"start_positions": np.array([0]), "end_positions": np.array([1])}
    )
    assert found.value == pytest.approx((-math.log(3 / 5) + math.log(3)) / 2)
    two = {key: np.repeat(value, 2, 0) for key, value in scores.items()}
    positions = {"start_positions": np.array([0, 99]), "end_positions": np.array([1, -7])}  # 99 ignored, -7 is 0
    assert own_loss.of("question_answering", two, positions).value == pytest.approx(found.value)

    def classified(logits, labels, **config):
        of = dataclasses.make_dataclass("Config", ["problem_type"])
        scores = {"logits": np.array(logits)}
        kind = of(config.get("problem_type"))
        return own_loss.of("sequence_classification", scores, {"labels": np.array(labels)}, kind).value

    assert classified([[math.log(3), 0.0, 0.0]], [0]) == pytest.approx(-math.log(3 / 5))
    assert classified([[2.0], [0.0]], [1.0, 3.0]) == pytest.approx((1 + 9) / 2)
    assert classified([[0.0, math.log(3)]], [[1.0, 1.0]]) == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    assert classified([[2.0, 0.0]], [[1.0, 3.0]], problem_type="regression") == pytest.approx((1 + 9) / 2)


def test_where_no_label_counts_there_is_no_loss_to_be_wrong():
    truth = {"logits": np.zeros((1, 2, 3)), "loss": np.array(math.nan)}
    checked = own_loss.check(truth, {"labels": np.full((1, 2), -100)}, {"head": "causal_lm"}, object.__new__(_Model))
    assert checked["units"] == 0
    truth["loss"] = np.array(0.5)
    checked = own_loss.check(truth, {"labels": np.full((1, 2), -100)}, {"head": "causal_lm"}, object.__new__(_Model))
    assert not checked["units"] <= checked["allowed"]


class _Model:
    def forward(self):
        loss = 1
        return loss


def test_only_a_difference_together_with_a_fault_is_inconclusive():
    drift, fault = Finding("semantics", "output:a", "off"), Finding("reference", "x.py:3", "casts")
    for findings, faults, inconclusive, named in (
        ([], [], False, None),
        ([], [fault], False, None),
        ([drift], [], False, drift),
        ([drift], [fault], True, fault),
    ):
        verdict = Verdict(findings=copy.copy(findings), reference_faults=copy.copy(faults))
        assert verdict.inconclusive == inconclusive and verdict.passed == (not findings)
        assert first_at_fault(verdict, ["output:a"]) == named
