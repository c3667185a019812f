"""Test that more runs of the reference are measured before a difference slightly beyond its bound stops a port."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from models.families import part
from toolkit.errors import Inconclusive
from toolkit.parity import gate
from toolkit.parity.exchange.results import ReferenceResult
from toolkit.parity.followup import remeasure
from toolkit.parity.inputs.synthetic import SyntheticWeights
from toolkit.parity.judge import bounds, notes
from toolkit.parity.judge.bounds import Comparison, compare
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import is_gradient
from toolkit.parity.report.report import Report
from toolkit.parity.trials.mutation import trial_request


def make_difference(margin: float, kind: str = "rounding") -> tuple[Finding, Comparison]:
    finding = Finding(kind, f"output:{margin}", "off", "float32")
    return finding, Comparison(finding.name, "float32", margin, 1.0, 0.0, 1.0, margin, True)


@pytest.mark.parametrize("kind", ["recomputed", "replay"])
def test_the_gradients_of_two_backwards_are_measured_again(kind):
    """The numbers are from seed 4113 of the sweep, with plain streams and large gains.

    A correct port's reversible backward lost 0.91 of a float32 gradient. The reference's own backward lost 0.05 to 0.09
    in five runs, and 0.5 to 2.2 in nine of twenty more runs.
    """
    finding, comparison = make_difference(3.3, kind)
    verdict = Verdict(findings=[finding], **{kind: [comparison]})
    assert remeasure.is_near_bound(verdict)
    assert not remeasure.is_near_bound(Verdict(findings=[finding], comparisons=[comparison]))
    far_difference, farther_difference = make_difference(30.0, kind)
    assert not remeasure.is_near_bound(
        Verdict(findings=[finding, far_difference], **{kind: [comparison, farther_difference]})
    )
    missing = Finding(kind, "gradient:b", "it is missing", "float32")
    assert not remeasure.is_near_bound(Verdict(findings=[finding, missing], **{kind: [comparison]}))


@pytest.mark.parametrize(
    ("findings_and_comparisons", "is_near_bound"),
    [
        ([], False),
        ([make_difference(1.5)], True),
        ([make_difference(1.5), make_difference(9.0, "semantics")], True),
        ([make_difference(1.5), make_difference(11.0)], False),
        ([make_difference(1.5), make_difference(2.0, "structure")], False),
    ],
)
def test_only_tensors_near_their_bounds_are_measured_again(findings_and_comparisons, is_near_bound):
    findings, comparisons = zip(*findings_and_comparisons, strict=True) if findings_and_comparisons else ((), ())
    assert remeasure.is_near_bound(Verdict(comparisons=list(comparisons), findings=list(findings))) == is_near_bound


def test_more_runs_widen_the_noise_baseline_and_are_noted(tmp_path, monkeypatch):
    runs = {"float64": [1e-16, 1e-16], "float32": [1e-7] * 5}
    record = TensorRecord(shape=[4], rms=1.0, max=1.0, noise=runs, noise_max=runs)
    more_runs = {"float64": [1e-16] * 8, "float32": [1e-7] * 19 + [9e-7]}
    error = TensorStats(shape=[4], rms=2e-6, max=2e-6)
    first = compare("gradient:a", record, error, "float32")
    assert not first.passed
    verdict = Verdict(comparisons=[first], findings=[Finding("rounding", "gradient:a", "off", "float32")])
    reference = ReferenceResult(tensors={"gradient:a": record})
    new_record = TensorRecord(shape=[], noise=more_runs, noise_max=more_runs)
    monkeypatch.setattr(remeasure, "measure_again", lambda *_: [{"gradient:a": new_record}])
    monkeypatch.setattr(remeasure, "num_more_runs", lambda job: remeasure.MORE_RUNS)
    [updated_reference] = remeasure.remeasure_near_bounds(
        [tmp_path], [(reference, verdict)], Console(file=io.StringIO()), "python"
    )
    assert compare("gradient:a", updated_reference.tensors["gradient:a"], error, "float32").passed
    assert len(updated_reference.tensors["gradient:a"].noise["float32"]) == 25 and len(runs["float32"]) == 5
    sentence = notes.text(updated_reference.notes[-1])
    assert "25 float32 and 10 float64 runs, since by 5 float32 and 2 float64 alone gradient:a was at" in sentence


def assert_runs_are_different(report: Report, float32: int, float64: int) -> None:
    """Check the number of runs that measure each tensor, and that no two runs are equal."""
    for name, record in report.reference.tensors.items():
        for dtype, count in (("float32", float32), ("float64", float64)):
            assert len(record.noise[dtype]) == count, name
        if is_gradient(name) and np.prod(record.shape) > 20:
            runs = record.noise["float32"]
            assert len(set(runs)) == float32 and max(runs[5:]) < 10 * max(runs[:5]), name


@pytest.mark.slow
def test_more_runs_of_a_small_reference_differ_from_the_first(tmp_path, monkeypatch):
    """Like the next test, with fewer runs of a model of one layer."""
    monkeypatch.setattr(bounds, "ROUNDING_FACTOR", 0.3)
    monkeypatch.setattr(bounds, "FLOOR_UNITS", 0.0)
    monkeypatch.setattr(remeasure, "MORE_RUNS", {"float32": 4, "float64": 2})
    monkeypatch.setattr(
        gate, "trace_operations", lambda *_, **__: None
    )  # another pair of processes that is not needed here
    trial = trial_request("ctrl", "heavy-tailed", 0)
    config = {**trial.config, "n_layer": 1}
    weights = SyntheticWeights(part("ctrl", "schema").resolve(config), trial.head, 0, "heavy-tailed", "ctrl")
    request = dataclasses.replace(trial, config=config, weights=weights, dtypes=("float32",))
    out = io.StringIO()
    report = gate.run_gate(request, tmp_path, Console(file=out, width=200))
    assert report.exit_status == 1 and "near the bounds; 6 more runs of the reference" in out.getvalue()
    assert any("measured by 9 float32 and 4 float64 runs, since" in notes.text(note) for note in report.verdict.notes)
    assert_runs_are_different(report, 9, 4)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["reformer", "ctrl"])
def test_a_drift_confirmed_by_more_runs_is_reported(model, tmp_path, monkeypatch):
    """The port is correct, but the bounds are a tenth of the normal bounds."""
    monkeypatch.setattr(bounds, "ROUNDING_FACTOR", 0.3)
    monkeypatch.setattr(bounds, "FLOOR_UNITS", 0.0)
    request = dataclasses.replace(trial_request(model, "heavy-tailed", 0), dtypes=("float32",))
    out = io.StringIO()
    report = gate.run_gate(request, tmp_path, Console(file=out, width=200))
    assert report.exit_status == 1 and "near the bounds; 28 more runs of the reference" in out.getvalue()
    assert any("measured by 25 float32 and 10 float64 runs, since" in notes.text(note) for note in report.verdict.notes)
    assert_runs_are_different(report, 25, 10)


def test_a_reference_that_cannot_run_again_does_not_change_the_verdict(tmp_path, monkeypatch):
    def fail(*_):
        raise Inconclusive("out of memory")

    monkeypatch.setattr(remeasure, "measure_again", fail)
    monkeypatch.setattr(remeasure, "num_more_runs", lambda job: remeasure.MORE_RUNS)
    finding, comparison = make_difference(1.5)
    out, reference = io.StringIO(), ReferenceResult()
    verdict = Verdict(comparisons=[comparison], findings=[finding])
    assert remeasure.remeasure_near_bounds([tmp_path], [(reference, verdict)], Console(file=out), "python") == [
        reference
    ]
    assert "out of memory" in out.getvalue()
