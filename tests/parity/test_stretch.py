"""Test the memory of a gate.

A request beyond the memory runs on a prefix of the text, a large model in a reduced comparison.
"""

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

#: Chunks of 16 and 16, and a table of 8 rows of 64, so that a length is a multiple of 64.
LONG = {**gates.TINY_REFORMER, "axial_pos_shape": [8, 64], "max_position_embeddings": 512, "num_buckets": None}


@pytest.fixture
def request_of_512():
    return gates.reformer_request(LONG)


def test_a_gate_that_fits_is_unchanged_and_reports_its_memory(request_of_512):
    fitted_request, num_bytes = stretch.fit_to_memory(request_of_512)
    assert fitted_request is request_of_512
    assert num_bytes.startswith("about ") and num_bytes.endswith(" GB of memory")


def test_a_gate_that_does_not_fit_is_shortened_to_the_longest_prefix_that_fits(request_of_512):
    room = stretch.memory_of(stretch.stretch(request_of_512, 320)) / 1e9 + 1e-6
    fitted_request, num_bytes = stretch.fit_to_memory(replace(request_of_512, max_memory=room))
    assert fitted_request.batch["input_ids"].shape == (3, 320)
    assert fitted_request.batch["attention_mask"].shape == (3, 320)
    assert "the first 320 of 512 tokens" in num_bytes
    assert fitted_request.length_notes == ("compared on the first 320 of the 512 tokens of each text",)
    assert stretch.memory_of(fitted_request) <= room * 1e9 < stretch.memory_of(stretch.stretch(request_of_512, 384))


def test_the_workers_of_a_long_text_run_at_once_if_both_fit(request_of_512, monkeypatch):
    assert job_of(stretch.fit_to_memory(request_of_512)[0]).at_once, "of a short text, always"
    monkeypatch.setattr(build, "LONG", 512)
    assert not job_of(request_of_512).at_once, "nobody has looked whether both fit"
    both = 2 * stretch.ROOM_FOR_BOTH * stretch.memory_of(request_of_512) / 1e9
    for room, at_once in ((1.01 * both, True), (0.99 * both, False)):
        job = job_of(stretch.fit_to_memory(replace(request_of_512, max_memory=room))[0])
        assert job.spare_memory and job.at_once == at_once


def test_the_noise_of_a_long_text_is_measured_in_few_runs(request_of_512, monkeypatch):
    assert job_of(request_of_512).noise_runs == build.NOISE_RUNS
    monkeypatch.setattr(build, "LONG", 512)
    assert job_of(request_of_512).noise_runs == build.FEW_NOISE_RUNS
    num_runs = job_of(replace(request_of_512, dtypes=("float32", "bfloat16"))).noise_runs
    assert num_runs == {**build.FEW_NOISE_RUNS, **build.FEW_LOWERED_RUNS}


def test_float32_has_fewer_runs_stage_by_stage_if_it_is_not_judged(request_of_512):
    for dtypes, runs in ((("float32",), build.FEW_NOISE_RUNS), (("float64",), build.FEW_RUNS_OF_FLOAT64)):
        assert build.streamed_job_of(replace(request_of_512, dtypes=dtypes)).noise_runs == runs


def test_a_shortened_gate_uses_the_first_positions_of_the_model(request_of_512):
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


def test_a_gate_that_never_fits_is_inconclusive_and_a_given_length_is_not_changed(request_of_512):
    with pytest.raises(Inconclusive, match=r"it may take 0\.0 GB \(parity\.max_memory\)"):
        stretch.fit_to_memory(replace(request_of_512, max_memory=1e-6))
    with pytest.raises(UserError, match=r"a gate over 256 tokens takes about .* it may take"):
        stretch.fit_to_memory(replace(request_of_512, max_memory=1e-6, length=256))


def test_the_command_accepts_a_memory_limit(command_line, tmp_path):
    """The option corresponds to a recipe's `parity.max_memory`; 1 GB is too little even for an empty worker."""
    status, _, err = command_line("parity", "--model", "reformer", "--max-memory", "1", "--output", tmp_path)
    assert status == 3 and "it may take 1.0 GB" in err


def test_a_given_length_is_padded_to_a_possible_length(request_of_512):
    fitted_request, _ = stretch.fit_to_memory(replace(request_of_512, length=200))
    assert fitted_request.batch["input_ids"].shape == (3, 256)
    fitted_request, _ = stretch.fit_to_memory(replace(request_of_512, length=10**6))
    assert fitted_request.batch["input_ids"].shape == (3, 512)


@pytest.mark.slow
def test_a_shortened_gate_passes_and_reports_its_length(request_of_512, tmp_path):
    report, output = gates.run(replace(request_of_512, length=128, dtypes=("float64",)), tmp_path)
    assert report.passed
    assert "compared on the first 128 of the 512 tokens of each text" in output


def test_a_large_model_passes_a_reduced_comparison_that_finds_a_fault_of_the_backward(
    request_of_512, tmp_path, monkeypatch
):
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
