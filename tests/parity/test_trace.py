"""Forced input: right operations pass one by one; a wrong one is named with its line, forward or backward."""

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
        *("sorted", "mean_square", "normaliser", "unsorted", "unsorted_normaliser", "round_weights", "combined"),
    },
    "ctrl": {"heads", "scores", "scaled_scores", "masked_scores", "probabilities", "context", "merged"},
}


RIGHT = [("reformer", "heavy-tailed"), ("ctrl", "large-gains")]


def traced_request(model: str, kind: str) -> GateRequest:
    return replace(trial_request(model, kind, 0), dtypes=("float64", "float32"), trace=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> PreparedGates:
    return PreparedGates(tmp_path_factory.mktemp("jobs"), [traced_request(*one) for one in RIGHT])


@pytest.mark.parametrize(("model", "kind"), RIGHT)
def test_each_operation_of_a_right_port_passes_and_none_is_left_out(prepared, model, kind, tmp_path, monkeypatch):
    judged = []
    monkeypatch.setattr(
        trace,
        "summarize_trace",
        lambda *measured, judge=trace.summarize_trace: judged.append(measured) or judge(*measured),
    )
    report, text = prepared.run(traced_request(model, kind), tmp_path)
    assert report.passed and "all are right" in text
    assert report.trace.faulty == [] and 0 < report.trace.worst < 1
    ((records, dtypes, *_),) = judged
    for name, record in records.items():  # no run of the reference repeats another, whose rounding may be luck
        if name.startswith("gradient:") and name.endswith(".bias"):
            assert len(set(record.noise["float32"])) > 1
    for ours in dtypes.values():
        forward = {name.split(":")[0] for name in ours.tensors}
        backward = {name.split(":")[1] for name in ours.tensors if name.startswith("gradient:")}
        assert OPERATIONS[model] <= forward and OPERATIONS[model] - {"masked_scores"} <= backward
    # The port masks and takes the softmax in one step, whose inner gradient nobody sees; all else is compared.
    assert {name.split(":")[1] for name in report.trace.alone} <= {"masked_scores"}
    assert json.loads((tmp_path / "parity.json").read_text())["trace"] == as_json(report.trace)
    assert "Operation by operation" in (tmp_path / "parity.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "file", "right", "wrong", "place", "named"),
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
            ),  # of what models.operations.ops computes, where it is asked for
            "the backward into mean square of",
        ),
    ],
)
def test_a_faulty_line_of_the_source_is_named(model, file, right, wrong, place, named, tmp_path):
    """The real command on a copy of the source: the second fault is in the backward alone."""
    assert (ROOT / "models" / file).read_text().count(right) == 1
    source = copied_source(tmp_path, f"models/{file}", (right, wrong)) / "models" / place[0]
    size = {"ctrl": ["n_embd=16", "n_head=2", "dff=16", "vocab_size=32"], "reformer": ["hidden_size=256"]}[model]
    command = ["parity", "--model", model, "--layers", "2", "--length", "128", "--batch-size", "1", *size]
    done = toolkit_in(tmp_path, *command, "--output", "out")
    assert done.returncode == 1, done.stdout + done.stderr
    first = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())["trace"]["faulty"][0]
    said = FaultyOp(**first).text()
    assert said.startswith(named) and said in done.stdout
    line = int(first["where"].split(":")[1])
    assert first["where"].startswith(f"models/{place[0]}:")
    near = source.read_text().splitlines()[line - 1 : line + 2]
    assert any(place[1] in one for one in near)


def test_a_parameters_gradient_comes_after_that_of_what_its_module_gives():
    names = ["output:a", "loss", "gradient:output:b", "gradient:output:a", "gradient:output:0", "gradient:a.weight"]
    assert trace.sort_by_execution(names) == [*names[:4], "gradient:a.weight", "gradient:output:0"]


def in_dtype(tensors: dict[str, TensorStats]) -> ForcedInputDtype:
    return ForcedInputDtype(tensors, lines={}, modules={})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (TensorStats([3]), "shape [3], the reference's is [2]"),
        (TensorStats([2], finite=False), "holds NaN or Inf"),
        (TensorStats([], missing=True), "no gradient comes back"),
    ],
)
def test_what_has_no_error_is_faulty_whatever_its_size(wrong, message):
    noise = {"float64": [0.0], "float32": [0.0]}
    theirs = TensorRecord([2], rms=1.0, max=1.0, noise=noise, noise_max=noise)
    reference = {name: theirs for name in ("scores:a", "scores:b")}
    tensors = {"scores:a": TensorStats([2], rms=0.0, max=0.0), "scores:b": wrong}
    found = trace.summarize_trace(reference, {"float64": in_dtype(tensors)})
    assert [(one.name, one.message) for one in found.faulty] == [("scores:b", message)]


def test_a_step_that_is_several_of_the_references_may_be_off_by_what_those_are_together():
    def record(noise):
        noise = {"float32": [noise], "float64": [0.0]}
        return TensorRecord([2], rms=1.0, max=1.0, noise=noise, noise_max=noise)

    reference = {"gradient:masked_scores:a": record(1e-4), "gradient:scores:a": record(0.0)}

    def faulty(*names):
        errors = {name: 1e-4 if name == "gradient:scores:a" else 0.0 for name in names}
        tensors = {name: TensorStats([2], rms=error, max=error) for name, error in errors.items()}
        found = trace.summarize_trace(reference, {"float32": in_dtype(tensors)})
        return [one.name for one in found.faulty]

    assert faulty("gradient:scores:a") == []
    assert faulty(*reference) == ["gradient:scores:a"]
    reference = {"gradient:masked_scores:b": record(1e-4), "gradient:scores:a": record(0.0)}
    assert faulty("gradient:scores:a") == ["gradient:scores:a"]
    reference = {"masked_scores:a": record(1e-4), "gradient:scores:a": record(0.0)}
    assert faulty("gradient:scores:a") == ["gradient:scores:a"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_the_reference_is_given_is_moved_by_one_unit_and_no_further(dtype):
    value = np.resize(np.array([1.0, -3.0, 0.0, np.finfo(dtype).min, 1e-30]), 100).astype(dtype)
    once, again = nudge_array(value, 1), nudge_array(value, 2)
    assert (once != again).any() and once.dtype == dtype
    for one in (once, again):
        stays = (value == 0) | (value == np.finfo(dtype).min)
        assert (one[value == 0] == 0).all() and np.isfinite(one).all()
        assert ((one != value) | stays).all() and (np.nextafter(one, value) == value).all()
    assert (nudge_array(value, 0) == value).all() and nudge_array(value, 0) is not value


def masked_scores() -> dict[str, np.ndarray]:
    """Scores of R64 before and after a mask: one is left, one ahead, one padding."""
    lowest = np.finfo("float64").min
    return {"scaled_scores:a": np.array([3.0, 2.0, 1.0]), "masked_scores:a": np.array([3.0, 2.0 - 1e4, lowest])}


def test_a_mask_of_the_future_is_seen_beside_the_lowest_number_and_a_score_beside_both():
    """RMS and maximum of the whole would be those of -1.8e308, next to which -1e4 is nothing, nor a score to that."""
    truth = masked_scores()
    everything, left = split_masked_scores(
        "masked_scores:a", truth["masked_scores:a"] + 1e-6, truth["masked_scores:a"], truth
    )
    assert everything[0] == "masked_scores:a" and left[0] == "unmasked_scores:a"
    np.testing.assert_array_equal(everything[2], [3.0, 2.0 - 1e4, -1e9])
    np.testing.assert_array_equal(left[1:], [[3.0 + 1e-6], [3.0]])
    truth["masked_scores:a"][0] = -1e9  # a row of padding
    masked, scaled = truth["masked_scores:a"], truth["scaled_scores:a"]
    assert [name for name, *_ in split_masked_scores("masked_scores:a", masked, masked, truth)] == ["masked_scores:a"]
    assert next(split_masked_scores("scaled_scores:a", np.zeros(3), scaled, truth))[2] is scaled


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_a_mask_has_put_is_given_to_the_reference_as_it_is(dtype):
    """One unit of -1e9 in float32 is 64: a row that is masked everywhere would be anything, and so would its bound."""
    truth = {"scores:a": np.full(100, 0.3), "masked_scores:a@1": np.full(100, -1e9)}
    truth["masked_scores:a@1"][::2] = 0.3
    points = Points(lambda *_: None, truth, nudge=1)
    given = points.replace("masked_scores:a@1", torch.zeros(100, dtype=getattr(torch, dtype))).numpy()
    assert (given[1::2] == -1e9).all() and (given[::2] != np.array(0.3, dtype)).all()


def test_the_first_wrong_operation_in_the_dtype_of_a_finding_is_what_that_hangs_on():
    faulty = [FaultyOp("scores:a", "f:1", dtype, "") for dtype in ("float64", "float32")]
    found = OperationTrace(2, faulty=[*faulty, FaultyOp("gradient:input:b", "f:2", "float64", "")])
    for name, verdict, dtype, first in (
        ("output:c", "semantics", "float64", faulty[0]),
        ("gradient:c.weight", "rounding", "float32", faulty[1]),
        ("output:c", "structure", "float64", faulty[0]),
        # What is wrong with these is the cause of what it spoils, and in no operation.
        ("buckets:c", "buckets", "float64", None),
        ("parameter:c.weight", "structure", "float64", None),
        ("dropout:c", "structure", "float64", None),
        ("updated:c.weight", "semantics", "float64", None),
        ("loss#2", "semantics", "float64", None),
        ("gradient:c.weight", "recomputed", "float64", None),
    ):
        assert trace.first_faulty_operation(found, Finding(verdict, name, "", dtype)) is first
    assert trace.first_faulty_operation(None, Finding("semantics", "loss", "", "float64")) is None


def test_only_tensors_of_the_step_are_followed():
    drift = Finding("rounding", "gradient:a.weight", "", "float32")
    assert trace.is_wanted(Verdict(findings=[drift]))
    for name, verdict in (("updated:a", "semantics"), ("text 0", "tokenizer"), ("gradient:a", "replay")):
        assert not trace.is_wanted(Verdict(findings=[Finding(verdict, name, "")]))
    assert not trace.is_wanted(Verdict(findings=[drift], reference_faults=[drift]))


def test_where_the_reference_cannot_be_asked_again_the_report_says_so():
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
    ("side", "lacking"), [("reference", "weights.safetensors"), ("candidate", "forced_input.safetensors")]
)
def test_the_side_that_cannot_be_traced_is_the_one_that_is_named(side, lacking, tmp_path):
    """The reference lacks its weights; the port, what a reference that ended too early has left."""
    request = trial_request("ctrl", "random", 0)
    job = tmp_path / "job"
    write_request(request, request.weights, job)
    interpreters = workers_of(request)
    if side == "reference":
        (job / lacking).unlink()
    else:
        interpreters["reference"] = str(tmp_path / "python")
        (tmp_path / "python").write_text(f"#!/bin/sh\necho '{{}}' > {job}/reference/forced_input.json\n")
        (tmp_path / "python").chmod(0o755)
    found = trace.trace_operations(job, Verdict(), quiet(), interpreters, is_requested=True)
    assert found.problem.startswith(f"parity gate: the {side} could not run: ") and lacking in found.problem
    assert str(job) not in found.problem  # it is a temporary folder
    assert trace.describe_trace(found) == [f"operation trace unavailable: {found.problem}"]
    assert files.failure_path(job, side, trace.TASK).exists()
    # Those are failures of the trace: the gate's own measurements are none of its business.
    assert not list(job.rglob("result.*"))


def test_operations_that_are_wrong_behind_a_wrong_parameter_are_not_listed():
    faulty = [FaultyOp("output:a", "port.py:1", "float64", "off by 1")]
    [line] = trace.describe_trace(OperationTrace(compared=9, faulty=faulty), "parameter:a.weight")
    assert line.endswith(" 1 is wrong, which may follow from parameter:a.weight")
    assert len(trace.describe_trace(OperationTrace(compared=9, faulty=faulty))) == 2
