"""What a gate takes of memory: more than there is goes over a first stretch, and a large model in brief."""

from __future__ import annotations

from dataclasses import replace

import gates
import numpy as np
import pytest

from models.reformer import schema
from toolkit.errors import Inconclusive, UserError
from toolkit.parity.exchange.results import CandidateResult, read_results
from toolkit.parity.job import family
from toolkit.parity.judge.verdict import judge
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request import build, stretch
from toolkit.parity.request.build import job_of, workers_of, write_request

#: Chunks of 16 and 16, and a table of 8 rows of 64: a stretch is a multiple of 64.
LONG = {**gates.TINY_REFORMER, "axial_pos_shape": [8, 64], "max_position_embeddings": 512, "num_buckets": None}


@pytest.fixture
def request_of_512():
    return gates.reformer_request(LONG)


def test_a_gate_that_fits_is_left_alone_and_says_what_it_takes(request_of_512):
    fitted, takes = stretch.fit_to_memory(request_of_512)
    assert fitted is request_of_512
    assert takes.startswith("about ") and takes.endswith(" GB of memory")


def test_a_gate_that_does_not_fit_goes_over_the_longest_stretch_that_does(request_of_512):
    room = stretch.memory_of(stretch.stretch(request_of_512, 320)) / 1e9 + 1e-6
    fitted, takes = stretch.fit_to_memory(replace(request_of_512, max_memory=room))
    assert fitted.batch["input_ids"].shape == (3, 320)
    assert fitted.batch["attention_mask"].shape == (3, 320)
    assert "the first 320 of 512 tokens" in takes
    assert fitted.length_notes == ("compared on the first 320 of the 512 tokens of each text",)
    assert stretch.memory_of(fitted) <= room * 1e9 < stretch.memory_of(stretch.stretch(request_of_512, 384))


def test_the_workers_of_a_long_text_run_at_once_where_there_is_room_for_both(request_of_512, monkeypatch):
    assert job_of(stretch.fit_to_memory(request_of_512)[0]).at_once, "of a short text, always"
    monkeypatch.setattr(build, "LONG", 512)
    assert not job_of(request_of_512).at_once, "nobody has looked whether both fit"
    both = 2 * stretch.ROOM_FOR_BOTH * stretch.memory_of(request_of_512) / 1e9
    for room, at_once in ((1.01 * both, True), (0.99 * both, False)):
        job = job_of(stretch.fit_to_memory(replace(request_of_512, max_memory=room))[0])
        assert job.spare_memory and job.at_once == at_once


def test_of_a_long_text_the_noise_is_measured_by_few_runs(request_of_512, monkeypatch):
    assert job_of(request_of_512).noise_runs == build.NOISE_RUNS
    monkeypatch.setattr(build, "LONG", 512)
    assert job_of(request_of_512).noise_runs == build.FEW_NOISE_RUNS
    lowered = job_of(replace(request_of_512, dtypes=("float32", "bfloat16"))).noise_runs
    assert lowered == {**build.FEW_NOISE_RUNS, **build.FEW_LOWERED_RUNS}


def test_stage_by_stage_float32_has_fewer_runs_where_it_is_not_judged(request_of_512):
    for dtypes, runs in ((("float32",), build.FEW_NOISE_RUNS), (("float64",), build.FEW_RUNS_OF_FLOAT64)):
        assert build.streamed_job_of(replace(request_of_512, dtypes=dtypes)).noise_runs == runs


def test_a_stretch_is_the_model_on_its_first_positions(request_of_512):
    short = stretch.stretch(request_of_512, 128)
    table = "reformer.embeddings.position_embeddings.weights.0"
    np.testing.assert_array_equal(short.weights[table], request_of_512.weights[table][:2])
    assert short.config["axial_pos_shape"] == [2, 64]
    assert short.config["num_buckets"] == schema.num_buckets(schema.resolve(LONG), 512)
    assert short.config["num_buckets"] != schema.num_buckets(schema.resolve(LONG), 128)
    np.testing.assert_array_equal(short.batch["input_ids"], request_of_512.batch["input_ids"][:, :128])
    np.testing.assert_array_equal(short.batch["labels"], request_of_512.batch["labels"])


def test_every_shorter_length_is_one_that_the_model_trains_on(request_of_512):
    lengths = list(stretch.shorter_lengths(request_of_512))
    assert lengths == [448, 384, 320, 256, 192, 128, 64]
    for length in lengths:
        schema.check_training_length(schema.resolve(stretch.stretch(request_of_512, length).config), length)


def test_what_never_fits_is_inconclusive_and_a_length_that_is_asked_for_is_not_changed(request_of_512):
    with pytest.raises(Inconclusive, match=r"it may take 0\.0 GB \(parity\.max_memory\)"):
        stretch.fit_to_memory(replace(request_of_512, max_memory=1e-6))
    with pytest.raises(UserError, match=r"a gate over 256 tokens takes about .* it may take"):
        stretch.fit_to_memory(replace(request_of_512, max_memory=1e-6, length=256))


def test_the_command_takes_what_the_gate_may_take(command_line, tmp_path):
    """As a recipe's ``parity.max_memory``: not even an empty worker fits in 1 GB."""
    status, _, err = command_line("parity", "--model", "reformer", "--max-memory", "1", "--output", tmp_path)
    assert status == 3 and "it may take 1.0 GB" in err


def test_a_length_that_is_asked_for_is_padded_to_one_that_can_be(request_of_512):
    fitted, _ = stretch.fit_to_memory(replace(request_of_512, length=200))
    assert fitted.batch["input_ids"].shape == (3, 256)
    fitted, _ = stretch.fit_to_memory(replace(request_of_512, length=10**6))
    assert fitted.batch["input_ids"].shape == (3, 512)


@pytest.mark.slow
def test_a_gate_over_a_stretch_passes_and_says_over_what(request_of_512, tmp_path):
    report, said = gates.run(replace(request_of_512, length=128, dtypes=("float64",)), tmp_path)
    assert report.passed
    assert "compared on the first 128 of the 512 tokens of each text" in said


def test_a_large_model_passes_in_brief_and_a_fault_of_its_way_back_is_seen(request_of_512, tmp_path, monkeypatch):
    monkeypatch.setattr(family, "MAX_PARAMETERS", 0)
    request = replace(stretch.stretch(request_of_512, 128), dtypes=("float64",))
    fault = "streams-back-in-float32"
    write_request(request, request.weights, tmp_path, [fault])
    run_workers([tmp_path], gates.quiet(), workers_of(request))
    reference, candidate = read_results(tmp_path)
    assert judge(reference, candidate).passed
    ours = candidate.dtypes["float64"]
    assert ours.plain and ours.recomputed and not ours.replay
    verdict = judge(reference, CandidateResult(dtypes=candidate.mutants[fault].dtypes))
    assert "recomputed" in {finding.verdict for finding in verdict.findings}
