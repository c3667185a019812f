"""Test CTRL stage by stage: same numbers as for the whole model, resumable, and equally sensitive to faults."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace

import pytest
from gates import quiet, run

from models.ctrl import schema
from toolkit.errors import UserError
from toolkit.parity.bundle import cache
from toolkit.parity.exchange import stages
from toolkit.parity.exchange.results import read_results
from toolkit.parity.inputs.synthetic import SyntheticWeights, random_batch
from toolkit.parity.job.family import ported_family
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import ROWS
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.report.report import Report
from toolkit.parity.request import streaming
from toolkit.parity.request.build import is_streamed, job_of, streamed_job_of, workers_of
from toolkit.parity.request.request import GateRequest

CONFIG = {"n_embd": 32, "n_head": 4, "dff": 48, "n_layer": 3, "n_positions": 64, "vocab_size": 96, "pad_token_id": 95}


def make_request(is_streamed: bool = True, **keys) -> GateRequest:
    config = {**CONFIG, **keys}
    weights = SyntheticWeights(schema.resolve(config), "causal_lm", 0, "heavy-tailed", "ctrl")
    batch = random_batch(config, "causal_lm", 2, 24, 0, "ctrl")
    return GateRequest("ctrl", "causal_lm", config, weights, batch, seed=1, streamed=is_streamed)


@pytest.fixture(scope="module")
def uninterrupted_report(tmp_path_factory) -> Report:
    """Return the report of an uninterrupted gate, stage by stage."""
    with pytest.MonkeyPatch.context() as monkeypatch_context:
        monkeypatch_context.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run(make_request(), tmp_path_factory.mktemp("straight"))[0]


def test_both_sides_compute_the_same_stage_by_stage_and_as_a_whole(uninterrupted_report, tmp_path):
    assert_equal_reports(run(make_request(False), tmp_path)[0], uninterrupted_report)


@pytest.mark.slow
def test_untied_scores_are_the_same_stage_by_stage(tmp_path):
    whole_report, staged_report = (
        run(make_request(is_streamed, tie_word_embeddings=False), tmp_path / str(is_streamed))[0]
        for is_streamed in (False, True)
    )
    assert_equal_reports(whole_report, staged_report)


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_vocabulary_in_several_pieces_is_the_same_stage_by_stage(is_tied, tmp_path):
    keys = {"vocab_size": 2 * ROWS + 99, "tie_word_embeddings": is_tied, "n_layer": 1}
    whole_report, staged_report = (
        run(make_request(is_streamed, **keys), tmp_path / str(is_streamed))[0] for is_streamed in (False, True)
    )
    assert_equal_reports(whole_report, staged_report)


def assert_equal_reports(whole_report: Report, staged_report: Report) -> None:
    assert whole_report.passed and staged_report.passed
    theirs = {"whole": whole_report.reference.tensors, "parts": staged_report.reference.tensors}
    # The norm's output and the logits have other names there. Nothing is updated or evaluated stage by stage.
    parsed_names = {name: TensorName.parse(name) for name in theirs["whole"]}
    missing_names = {
        name for name, parsed_name in parsed_names.items() if parsed_name.is_of_training or parsed_name.evaluation
    }
    missing = theirs["whole"].keys() - theirs["parts"].keys() - missing_names
    assert missing == {"output:transformer", "output:lm_head"} and missing_names
    outputs = [[name for name in tensors if name.startswith("output:")] for tensors in theirs.values()]
    assert [name for name in outputs[0] if name in outputs[1]] == outputs[1]
    for name, record in theirs["parts"].items():
        assert record.rms == pytest.approx(theirs["whole"][name].rms, rel=1e-14), name
        assert record.noise["float32"] == pytest.approx(theirs["whole"][name].noise["float32"][:3], rel=1e-9), name
    for dtype in ("float64", "float32"):
        ours = whole_report.candidate.dtypes[dtype].tensors, staged_report.candidate.dtypes[dtype].tensors
        for name in theirs["parts"]:
            assert ours[1][name].rms == pytest.approx(ours[0][name].rms, rel=1e-9, abs=1e-300), name


@pytest.mark.slow
def test_an_interrupted_gate_resumes_with_the_same_numbers(uninterrupted_report, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "load", lambda key, kind: None)
    stages_dir = tmp_path / "streamed" / "candidate" / "stages"

    def interrupt(bars) -> None:
        if len(list(stages_dir.glob("*.json"))) >= 4:
            raise KeyboardInterrupt
        time.sleep(0.01)

    with monkeypatch.context() as monkeypatch_context, pytest.raises(KeyboardInterrupt):
        monkeypatch_context.setattr(streaming.Bars, "update", interrupt)
        run(make_request(), tmp_path)
    assert not (tmp_path / "parity.json").exists()
    report, output = run(make_request(), tmp_path)
    assert "going on where it was interrupted" in output and report.passed
    assert not (tmp_path / "streamed").exists()
    assert report.reference.tensors == uninterrupted_report.reference.tensors
    for dtype, ours in uninterrupted_report.candidate.dtypes.items():
        assert report.candidate.dtypes[dtype].tensors == ours.tensors


def test_an_interrupted_gate_of_another_request_is_not_resumed(tmp_path):
    console = quiet()
    job = job_of(make_request())
    first = streaming.open_job(tmp_path, job, "one", {}, console)
    (first / "reference" / "stages").mkdir()
    (first / "reference" / "stages" / "embedding.json").write_text("{}")
    assert (streaming.open_job(tmp_path, job, "one", {}, console) / "reference" / "stages" / "embedding.json").exists()
    assert not (streaming.open_job(tmp_path, job, "two", {}, console) / "reference" / "stages").exists()


@pytest.mark.slow
def test_a_fault_is_named_stage_by_stage(tmp_path):
    culprits = {
        "ctrl-norm-epsilon-x10": "output:transformer.h.0.layernorm1",
        "ctrl-head-untied": "gradient:transformer.w.weight",
    }
    request = make_request()
    jobs = {}
    with contextlib.ExitStack() as writers:
        for mutant in culprits:
            (tmp_path / mutant).mkdir()
            content = replace(streamed_job_of(request), mutants=[mutant])
            jobs[mutant] = streaming.open_job(tmp_path / mutant, content, "key", request.batch, quiet())
            writer = streaming.WeightsWriter(jobs[mutant], ported_family("ctrl"), request.weights, 3, 1)
            writers.enter_context(streaming.run_writer(writer))
        run_workers(list(jobs.values()), quiet(), workers_of(request))
    for mutant, name in culprits.items():
        reference, candidate = read_results(jobs[mutant])
        culprit = first_at_fault(judge(reference, candidate), list(reference.tensors))
        assert (culprit.name, culprit.dtype) == (name, "float64")


def test_weights_that_cannot_be_read_end_the_gate_with_the_reason(tmp_path):
    class FailingWeights(SyntheticWeights):
        def __getitem__(self, name):
            raise ValueError("a shard is missing")

    request = make_request()
    weights = FailingWeights(schema.resolve(CONFIG), "causal_lm", 0, "random", "ctrl")
    job = streaming.open_job(tmp_path, job_of(request), "key", request.batch, quiet())
    writer = streaming.WeightsWriter(job, ported_family("ctrl"), weights, 3, 1)
    threading.Thread(target=writer.run).start()
    with pytest.raises(RuntimeError, match="a shard is missing"):
        stages.read_weights(job, stages.EMBEDDING)


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**9}))
    request = GateRequest("ctrl", "causal_lm", {}, {}, {})
    with pytest.raises(UserError, match=r"needs about 10 GB there while it runs, 1 GB are free"):
        streaming.open_job(tmp_path, job_of(request), "key", {}, quiet())
    assert not list(tmp_path.iterdir())


def test_the_full_model_is_streamed_and_a_small_one_is_not():
    full = GateRequest("ctrl", "causal_lm", {}, {}, {})
    small = GateRequest("ctrl", "causal_lm", CONFIG, {}, {})
    assert is_streamed(full) and not is_streamed(small)
