"""Test a faulty reference: the fault is reported at its line and never attributed to the port."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from gates import quiet, request_for, run

from models.families import FAMILIES, part
from toolkit.errors import Inconclusive
from toolkit.parity.exchange.results import ReferenceResult, read_reference
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.job.family_part import family_part
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.reference import own_loss
from toolkit.parity.report.report import Report
from toolkit.parity.request.build import workers_of, write_request
from toolkit.parity.trials.mutation import trial_request

#: A careless cast in the forward of a layer of the reference.
CAST = """
from transformers.models.{family} import modeling_{family} as modeling
original = modeling.{layer}.forward
def forward(self, hidden_states, *args, **kwargs):
    hidden_states = hidden_states.to(torch.float32).to(hidden_states.dtype)  # here
    return original(self, hidden_states, *args, **kwargs)
modeling.{layer}.forward = forward
"""
#: A cast that is harmless in float64, because no tensor depends on its result.
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


def make_faulty_interpreter(folder: Path, fault: str) -> tuple[str, str]:
    """Return an interpreter with a faulty reference, and the faulty source line."""
    code = (
        f"import runpy, sys\nimport torch\n{fault}\nrunpy.run_module('toolkit.parity.reference', run_name='__main__')\n"
    )
    (folder / "fault.py").write_text(code)
    line = next(number for number, text in enumerate(code.splitlines(), start=1) if text.endswith("# here"))
    python = folder / "python"
    faulty_command, correct_command = f'{sys.executable} {folder}/fault.py "$5" "$6"', f'{sys.executable} "$@"'
    python.write_text(
        f'#!/bin/sh\ncase "$4" in toolkit.parity.reference) exec {faulty_command};; esac\nexec {correct_command}\n'
    )
    python.chmod(0o755)
    return str(python), f"fault.py:{line}"


def run_faulty_reference(model: str, fault: str, folder: Path, **options) -> tuple[str, Report, str]:
    """Run a gate against a faulty reference; return the faulty source line, the report and the output."""
    python, line = make_faulty_interpreter(folder, fault)
    request = dataclasses.replace(trial_request(model, "random", 0), reference_python=python, **options)
    return line, *run(request, folder / "out")


def make_cast_fault(family: str, layer: str, text: str = CAST) -> str:
    return text.format(family=family, layer=layer)


@pytest.mark.parametrize(
    ("model", "fault", "expected_line"),
    [
        ("ctrl", make_cast_fault("ctrl", "EncoderLayer"), "in less than float64"),
        pytest.param(
            "reformer", make_cast_fault("reformer", "LSHSelfAttention"), "in less than float64", marks=pytest.mark.slow
        ),
        pytest.param("ctrl", SHIFTED_TWICE, "the reference's loss is", marks=pytest.mark.slow),
        pytest.param("ctrl", OVER_ALL, "the reference's loss is", marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_the_reference_is_attributed_to_the_reference(tmp_path, model, fault, expected_line):
    line, report, text = run_faulty_reference(model, fault, tmp_path)
    saved_report = json.loads((tmp_path / "out/parity.json").read_text())
    assert text.startswith("INCONCLUSIVE the reference") and expected_line in text.splitlines()[0]
    assert text.splitlines()[0].endswith(f": {line}")
    assert (saved_report["exit_status"], saved_report["passed"]) == (
        3,
        False,
    ) and report.exit_status == Inconclusive.exit_status
    assert saved_report["culprit"]["place"] == saved_report["culprit"]["name"] == line
    assert saved_report["summary"].startswith("inconclusive: the reference") and saved_report["summary"].endswith(line)
    assert line in [fault["name"] for fault in saved_report["reference_faults"]]
    assert "models/" not in text and "DRIFT" not in text


@pytest.mark.slow
def test_a_fault_that_no_tensor_shows_is_a_note(tmp_path):
    line, report, text = run_faulty_reference("ctrl", make_cast_fault("ctrl", "EncoderLayer", HARMLESS_CAST), tmp_path)
    saved_report = json.loads((tmp_path / "out/parity.json").read_text())
    assert report.passed and text.startswith("PARITY") and saved_report["exit_status"] == 0
    assert f"({line}); no tensor shows it" in text


@pytest.mark.slow
@pytest.mark.parametrize("fault", [make_cast_fault("ctrl", "EncoderLayer"), SHIFTED_TWICE], ids=["cast", "loss"])
def test_a_fault_of_the_reference_is_found_stage_by_stage(tmp_path, fault):
    line, report, _ = run_faulty_reference("ctrl", fault, tmp_path, streamed=True)
    assert report.culprit.name == line


#: Every head of every family.
ALL_HEADS = [(model, head) for model in FAMILIES for head in part(model, "weights").HEADS]


@pytest.fixture(scope="module")
def clean_references(tmp_path_factory) -> dict[tuple[str, str], ReferenceResult]:
    """Return the measurements of the reference's process for a small model of each kind, in turn."""
    folder = tmp_path_factory.mktemp("released")
    jobs = {model_and_head: folder / "-".join(model_and_head) for model_and_head in ALL_HEADS}
    for (model, head), job in jobs.items():
        trial = family_part(model, "trial")
        config, length = trial.CONFIG, trial.LENGTH
        request = request_for(model, head, {**config, "num_labels": 2}, length, "heavy-tailed")
        write_request(request, randomize_constants(request.weights, request.seed)[0], job)
    run_workers(list(jobs.values()), quiet(), {"reference": workers_of(request)["reference"]})
    return {model_and_head: read_reference(job) for model_and_head, job in jobs.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "head"), ALL_HEADS)
def test_the_released_reference_has_no_faults(clean_references, model, head):
    """The exception is `.float()` in its language-model loss, which is kept in float64 and noted."""
    result = clean_references[model, head]
    assert result.narrowings == []
    assert [leak.partition(":")[0] for leak in result.leaks] == ["loss_utils.py"] * (head == "causal_lm")
    loss = result.own_loss
    assert loss.units < loss.allowed / 10 and loss.given > 0
    assert loss.place.partition(":")[2].isdigit()


def test_the_loss_follows_its_definition():
    """Scores of 0 give log(number of classes); one score of log(3) and two of 0 give a probability of 3/5."""
    level = np.zeros((2, 4, 8))
    labels = np.array([[1, 2, 3, -100], [-100, 5, 6, 7]])
    for head in ("causal_lm", "masked_lm"):
        assert own_loss.compute_loss(head, {"logits": level}, {"labels": labels}).value == pytest.approx(
            math.log(8), rel=1e-15
        )
    uneven = np.zeros((1, 3, 3))
    uneven[0, 0, 2] = math.log(3)
    labels = np.array([[0, 2, -100]])  # shifted: position 0 predicts 2, and position 1 nothing
    assert own_loss.compute_loss("causal_lm", {"logits": uneven}, {"labels": labels}).value == pytest.approx(
        -math.log(3 / 5)
    )
    for head in ("masked_lm", "token_classification"):
        unshifted_loss = own_loss.compute_loss(head, {"logits": uneven}, {"labels": labels}).value
        assert unshifted_loss == pytest.approx((-math.log(1 / 5) + math.log(3)) / 2)

    starts, ends = np.array([[math.log(3), 0.0, 0.0]]), np.zeros((1, 3))
    scores = {"start_logits": starts, "end_logits": ends}
    loss = own_loss.compute_loss(
        "question_answering", scores, {"start_positions": np.array([0]), "end_positions": np.array([1])}
    )
    assert loss.value == pytest.approx((-math.log(3 / 5) + math.log(3)) / 2)
    two = {key: np.repeat(value, 2, 0) for key, value in scores.items()}
    positions = {"start_positions": np.array([0, 99]), "end_positions": np.array([1, -7])}  # 99 is ignored, -7 is 0
    assert own_loss.compute_loss("question_answering", two, positions).value == pytest.approx(loss.value)

    def classification_loss(logits, labels, **config):
        make_config = dataclasses.make_dataclass("Config", ["problem_type"])
        scores = {"logits": np.array(logits)}
        kind = make_config(config.get("problem_type"))
        return own_loss.compute_loss("sequence_classification", scores, {"labels": np.array(labels)}, kind).value

    assert classification_loss([[math.log(3), 0.0, 0.0]], [0]) == pytest.approx(-math.log(3 / 5))
    assert classification_loss([[2.0], [0.0]], [1.0, 3.0]) == pytest.approx((1 + 9) / 2)
    assert classification_loss([[0.0, math.log(3)]], [[1.0, 1.0]]) == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    assert classification_loss([[2.0, 0.0]], [[1.0, 3.0]], problem_type="regression") == pytest.approx((1 + 9) / 2)


def test_no_loss_is_checked_if_no_label_counts():
    truth = {"logits": np.zeros((1, 2, 3)), "loss": np.array(math.nan)}
    loss_check = own_loss.check_loss(truth, {"labels": np.full((1, 2), -100)}, "causal_lm", object.__new__(_Model))
    assert loss_check.units == 0
    truth["loss"] = np.array(0.5)
    loss_check = own_loss.check_loss(truth, {"labels": np.full((1, 2), -100)}, "causal_lm", object.__new__(_Model))
    assert not loss_check.units <= loss_check.allowed


class _Model:
    def forward(self):
        loss = 1
        return loss


def test_only_a_difference_with_a_reference_fault_is_inconclusive():
    drift, fault = Finding("semantics", "output:a", "off"), Finding("reference", "x.py:3", "casts")
    for findings, faults, inconclusive, culprit in (
        ([], [], False, None),
        ([], [fault], False, None),
        ([drift], [], False, drift),
        ([drift], [fault], True, fault),
    ):
        verdict = Verdict(findings=copy.copy(findings), reference_faults=copy.copy(faults))
        assert verdict.inconclusive == inconclusive and verdict.passed == (not findings)
        assert first_at_fault(verdict, ["output:a"]) == culprit
