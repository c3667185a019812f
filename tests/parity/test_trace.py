"""Test forced input: correct operations pass one by one; a wrong operation is named with its line and direction."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from gates import ROOT, PreparedGates, copied_source, quiet, toolkit_in

from toolkit.parity.exchange import files
from toolkit.parity.exchange.records import as_json
from toolkit.parity.exchange.results import ForcedInputDtype
from toolkit.parity.followup import trace
from toolkit.parity.followup.trace import FaultyOp, OperationTrace
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.masked_scores import split_masked_scores
from toolkit.parity.reference.points import Points, nudge_array
from toolkit.parity.request.build import workers_of, write_request
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import trial_request

#: Every operation inside an attention, by family.
OPERATIONS = {
    "reformer": {
        *("heads", "key", "adjacent", "scores", "masked_scores", "probabilities", "dropped", "context"),
        *("sorted", "mean_square", "normalizer", "unsorted", "unsorted_normalizer", "round_weights", "combined"),
    },
    "ctrl": {"heads", "scores", "scaled_scores", "masked_scores", "probabilities", "context", "merged"},
}


RIGHT = [("reformer", "heavy-tailed"), ("ctrl", "large-gains")]


def traced_request(model: str, kind: str) -> GateRequest:
    return replace(trial_request(model, kind, 0), dtypes=("float64", "float32"), trace=True)


@pytest.fixture(scope="module")
def prepared_gates(tmp_path_factory) -> PreparedGates:
    return PreparedGates(tmp_path_factory.mktemp("jobs"), [traced_request(*case) for case in RIGHT])


@pytest.mark.parametrize(("model", "kind"), RIGHT)
def test_every_operation_of_a_correct_port_passes(prepared_gates, model, kind, tmp_path, monkeypatch):
    summarize_calls = []
    monkeypatch.setattr(
        trace,
        "summarize_trace",
        lambda *measurements, judge=trace.summarize_trace: summarize_calls.append(measurements) or judge(*measurements),
    )
    report, text = prepared_gates.run(traced_request(model, kind), tmp_path)
    assert report.passed and "all are right" in text
    assert report.trace.faulty == [] and 0 < report.trace.worst < 1
    ((records, dtypes, *_),) = summarize_calls
    for name, record in records.items():  # no two runs of the reference are equal; equal rounding could be chance
        if name.startswith("gradient:") and name.endswith(".bias"):
            assert len(set(record.noise["float32"])) > 1
    for ours in dtypes.values():
        forward = {name.split(":")[0] for name in ours.tensors}
        backward = {name.split(":")[1] for name in ours.tensors if name.startswith("gradient:")}
        assert OPERATIONS[model] <= forward and OPERATIONS[model] - {"masked_scores"} <= backward
    # The port masks and computes the softmax in one step, so its inner gradient is not observable; everything else is
    # compared.
    assert {name.split(":")[1] for name in report.trace.alone} <= {"masked_scores"}
    assert json.loads((tmp_path / "parity.json").read_text())["trace"] == as_json(report.trace)
    assert "Operation by operation" in (tmp_path / "parity.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "file", "original_code", "faulty_code", "place", "culprit"),
    [
        (
            "ctrl",
            "ctrl/layers.py",
            "divisor = math.sqrt",
            "divisor = 1.0000001 * math.sqrt",
            ("ctrl/layers.py", "scores / divisor"),
            "scaled scores of transf",
        ),
        (
            "reformer",
            "operations/ops.py",
            "paddle.rsqrt(mean_square +",
            "paddle.rsqrt(mean_square.detach() +",
            (
                "reformer/attention.py",
                "unit_mean_square(",
            ),  # the line that calls the function of models.operations.ops
            "the backward into mean square of",
        ),
    ],
)
def test_a_faulty_line_of_the_source_is_named(model, file, original_code, faulty_code, place, culprit, tmp_path):
    """Run the real command on a copy of the source; the second fault is only in the backward."""
    assert (ROOT / "models" / file).read_text().count(original_code) == 1
    source = copied_source(tmp_path, f"models/{file}", (original_code, faulty_code)) / "models" / place[0]
    size = {"ctrl": ["n_embd=16", "n_head=2", "dff=16", "vocab_size=32"], "reformer": ["hidden_size=256"]}[model]
    command = ["parity", "--model", model, "--layers", "2", "--length", "128", "--batch-size", "1", *size]
    process = toolkit_in(tmp_path, *command, "--output", "out")
    assert process.returncode == 1, process.stdout + process.stderr
    first = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())["trace"]["faulty"][0]
    description = FaultyOp(**first).text()
    assert description.startswith(culprit) and description in process.stdout
    line = int(first["where"].split(":")[1])
    assert first["where"].startswith(f"models/{place[0]}:")
    nearby_lines = source.read_text().splitlines()[line - 1 : line + 2]
    assert any(place[1] in text for text in nearby_lines)


def test_a_parameters_gradient_follows_the_gradient_of_its_modules_output():
    names = ["output:a", "loss", "gradient:output:b", "gradient:output:a", "gradient:output:0", "gradient:a.weight"]
    assert trace.sort_by_execution(names) == [*names[:4], "gradient:a.weight", "gradient:output:0"]


def make_dtype_result(tensors: dict[str, TensorStats]) -> ForcedInputDtype:
    return ForcedInputDtype(tensors, lines={}, modules={})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (TensorStats([3]), "shape [3], the reference's is [2]"),
        (TensorStats([2], finite=False), "holds NaN or Inf"),
        (TensorStats([], missing=True), "no gradient comes back"),
    ],
)
def test_an_operation_without_an_error_is_faulty(wrong, message):
    noise = {"float64": [0.0], "float32": [0.0]}
    theirs = TensorRecord([2], rms=1.0, max=1.0, noise=noise, noise_max=noise)
    reference = {name: theirs for name in ("scores:a", "scores:b")}
    tensors = {"scores:a": TensorStats([2], rms=0.0, max=0.0), "scores:b": wrong}
    summary = trace.summarize_trace(reference, {"float64": make_dtype_result(tensors)})
    assert [(operation.name, operation.message) for operation in summary.faulty] == [("scores:b", message)]


def test_a_fused_operation_may_have_the_sum_of_the_references_errors():
    def make_record(noise):
        noise = {"float32": [noise], "float64": [0.0]}
        return TensorRecord([2], rms=1.0, max=1.0, noise=noise, noise_max=noise)

    reference = {"gradient:masked_scores:a": make_record(1e-4), "gradient:scores:a": make_record(0.0)}

    def find_faulty(*names):
        errors = {name: 1e-4 if name == "gradient:scores:a" else 0.0 for name in names}
        tensors = {name: TensorStats([2], rms=error, max=error) for name, error in errors.items()}
        summary = trace.summarize_trace(reference, {"float32": make_dtype_result(tensors)})
        return [operation.name for operation in summary.faulty]

    assert find_faulty("gradient:scores:a") == []
    assert find_faulty(*reference) == ["gradient:scores:a"]
    reference = {"gradient:masked_scores:b": make_record(1e-4), "gradient:scores:a": make_record(0.0)}
    assert find_faulty("gradient:scores:a") == ["gradient:scores:a"]
    reference = {"masked_scores:a": make_record(1e-4), "gradient:scores:a": make_record(0.0)}
    assert find_faulty("gradient:scores:a") == ["gradient:scores:a"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_inputs_of_the_reference_are_nudged_by_one_unit(dtype):
    value = np.resize(np.array([1.0, -3.0, 0.0, np.finfo(dtype).min, 1e-30]), 100).astype(dtype)
    once, again = nudge_array(value, 1), nudge_array(value, 2)
    assert (once != again).any() and once.dtype == dtype
    for result in (once, again):
        stays = (value == 0) | (value == np.finfo(dtype).min)
        assert (result[value == 0] == 0).all() and np.isfinite(result).all()
        assert ((result != value) | stays).all() and (np.nextafter(result, value) == value).all()
    assert (nudge_array(value, 0) == value).all() and nudge_array(value, 0) is not value


def make_masked_scores() -> dict[str, np.ndarray]:
    """Return scores of R64 before and after a mask: one visible, one of a later token, one of padding."""
    lowest = np.finfo("float64").min
    return {"scaled_scores:a": np.array([3.0, 2.0, 1.0]), "masked_scores:a": np.array([3.0, 2.0 - 1e4, lowest])}


def test_masked_and_visible_scores_are_compared_separately():
    """RMS and maximum of the whole row would be dominated by -1.8e308, which would hide both -1e4 and a score."""
    truth = make_masked_scores()
    all_scores, visible_scores = split_masked_scores(
        "masked_scores:a", truth["masked_scores:a"] + 1e-6, truth["masked_scores:a"], truth
    )
    assert all_scores[0] == "masked_scores:a" and visible_scores[0] == "unmasked_scores:a"
    np.testing.assert_array_equal(all_scores[2], [3.0, 2.0 - 1e4, -1e9])
    np.testing.assert_array_equal(visible_scores[1:], [[3.0 + 1e-6], [3.0]])
    truth["masked_scores:a"][0] = -1e9  # a row of padding
    masked_row, scaled_row = truth["masked_scores:a"], truth["scaled_scores:a"]
    assert [name for name, *_ in split_masked_scores("masked_scores:a", masked_row, masked_row, truth)] == [
        "masked_scores:a"
    ]
    assert next(split_masked_scores("scaled_scores:a", np.zeros(3), scaled_row, truth))[2] is scaled_row


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_masked_scores_are_not_nudged(dtype):
    """In float32, the spacing at -1e9 is 64, so a fully masked row would be arbitrary, and its bound too."""
    truth = {"scores:a": np.full(100, 0.3), "masked_scores:a@1": np.full(100, -1e9)}
    truth["masked_scores:a@1"][::2] = 0.3
    points = Points(lambda *_: None, truth, nudge=1)
    forced_input = points.replace("masked_scores:a@1", torch.zeros(100, dtype=getattr(torch, dtype))).numpy()
    assert (forced_input[1::2] == -1e9).all() and (forced_input[::2] != np.array(0.3, dtype)).all()


def test_a_finding_is_attributed_to_the_first_wrong_operation_in_its_dtype():
    faulty = [FaultyOp("scores:a", "f:1", dtype, "") for dtype in ("float64", "float32")]
    operation_trace = OperationTrace(2, faulty=[*faulty, FaultyOp("gradient:input:b", "f:2", "float64", "")])
    for name, verdict, dtype, first in (
        ("output:c", "semantics", "float64", faulty[0]),
        ("gradient:c.weight", "rounding", "float32", faulty[1]),
        ("output:c", "structure", "float64", faulty[0]),
        # The cause of these findings is not in an operation.
        ("buckets:c", "buckets", "float64", None),
        ("parameter:c.weight", "structure", "float64", None),
        ("dropout:c", "structure", "float64", None),
        ("updated:c.weight", "semantics", "float64", None),
        ("loss#2", "semantics", "float64", None),
        ("gradient:c.weight", "recomputed", "float64", None),
    ):
        assert trace.first_faulty_operation(operation_trace, Finding(verdict, name, "", dtype)) is first
    assert trace.first_faulty_operation(None, Finding("semantics", "loss", "", "float64")) is None


def test_only_tensors_of_the_step_are_traced():
    drift = Finding("rounding", "gradient:a.weight", "", "float32")
    assert trace.is_wanted(Verdict(findings=[drift]))
    for name, verdict in (("updated:a", "semantics"), ("text 0", "tokenizer"), ("gradient:a", "replay")):
        assert not trace.is_wanted(Verdict(findings=[Finding(verdict, name, "")]))
    assert not trace.is_wanted(Verdict(findings=[drift], reference_faults=[drift]))


def test_a_trace_without_the_reference_is_reported_as_unavailable():
    drift = Verdict(findings=[Finding("semantics", "loss", "", "float64")])
    assert (
        "recorded" in trace.describe_trace(trace.explain_missing_trace(drift, is_requested=False, is_recorded=True))[0]
    )
    assert (
        "stage by stage"
        in trace.describe_trace(trace.explain_missing_trace(drift, is_requested=False, is_recorded=False))[0]
    )
    assert trace.explain_missing_trace(Verdict(), is_requested=False, is_recorded=True) is None


@pytest.mark.parametrize(
    ("side", "missing_file"), [("reference", "weights.safetensors"), ("candidate", "forced_input.safetensors")]
)
def test_the_side_that_cannot_be_traced_is_named(side, missing_file, tmp_path):
    """The reference lacks its weights; the port lacks the files of a reference that ended too early."""
    request = trial_request("ctrl", "random", 0)
    job = tmp_path / "job"
    write_request(request, request.weights, job)
    interpreters = workers_of(request)
    if side == "reference":
        (job / missing_file).unlink()
    else:
        interpreters["reference"] = str(tmp_path / "python")
        (tmp_path / "python").write_text(f"#!/bin/sh\necho '{{}}' > {job}/reference/forced_input.json\n")
        (tmp_path / "python").chmod(0o755)
    operation_trace = trace.trace_operations(job, Verdict(), quiet(), interpreters, is_requested=True)
    assert (
        operation_trace.problem.startswith(f"parity gate: the {side} could not run: ")
        and missing_file in operation_trace.problem
    )
    assert str(job) not in operation_trace.problem  # the folder is temporary
    assert trace.describe_trace(operation_trace) == [f"operation trace unavailable: {operation_trace.problem}"]
    assert files.failure_path(job, side, trace.TASK).exists()
    # The failures belong to the trace, not to the gate's measurements.
    assert not list(job.rglob("result.*"))


def test_operations_behind_a_wrong_parameter_are_not_listed():
    faulty = [FaultyOp("output:a", "port.py:1", "float64", "off by 1")]
    [line] = trace.describe_trace(OperationTrace(compared=9, faulty=faulty), "parameter:a.weight")
    assert line.endswith(" 1 is wrong, which may follow from parameter:a.weight")
    assert len(trace.describe_trace(OperationTrace(compared=9, faulty=faulty))) == 2
