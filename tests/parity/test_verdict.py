"""Test the arithmetic of the verdicts on synthetic measurements: passes, failures, and the named culprit."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest

from toolkit.parity.exchange import files
from toolkit.parity.exchange.records import as_json, from_json
from toolkit.parity.exchange.results import (
    CandidateDtype,
    CandidateFacts,
    CandidateResult,
    Flips,
    ReferenceFacts,
    ReferenceResult,
    ReplayError,
    Tokens,
)
from toolkit.parity.followup import attribution
from toolkit.parity.job.pair import KnownDifference
from toolkit.parity.judge import notes
from toolkit.parity.judge.bounds import compare, is_lost
from toolkit.parity.judge.culprit import first_at_fault, recomputing_at_fault
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.judge.tokens import find_token_faults
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import RunningStats, TensorRecord, TensorStats

SHRINK = 2.0**-29


def make_record(rms: float = 1.0, noise: float = 1e-7) -> TensorRecord:
    """Return a record of R64 with the errors of the reference's float32 runs."""
    return TensorRecord(
        shape=[4],
        rms=rms,
        max=3 * rms,
        noise={"float32": [noise / 2, noise], "float64": [noise * SHRINK / 2]},
        noise_max={"float32": [noise, 3 * noise], "float64": [noise * SHRINK]},
    )


def make_stats(error: float) -> TensorStats:
    return TensorStats([4], rms=error, max=3 * error)


def make_overflow() -> TensorStats:
    """Return an error of the port that cannot be measured."""
    return TensorStats([4], finite=False)


def make_nonfinite_record(dtype: str) -> TensorRecord:
    """Return a record of R64 with NaN or Inf in one run in `dtype`."""
    record = make_record()
    record.noise[dtype][-1] = record.noise_max[dtype][-1] = None
    return record


def list_findings(verdict: Verdict) -> list[str]:
    return [notes.text(note) for note in verdict.notes]


NAMES = ("output:a", "output:b", "loss", "gradient:a.weight", "gradient:b.weight")


@pytest.fixture
def reference() -> ReferenceResult:
    return ReferenceResult(
        tensors={name: make_record() for name in NAMES},
        parameters={"a.weight": [4], "b.weight": [4]},
        facts=ReferenceFacts(num_buckets=4, bucket_slack={"a": 1e-4}),
        tokens=[Tokens("x y", [1, 2], "x")],
    )


@pytest.fixture
def candidate() -> CandidateResult:
    def side(error: float) -> CandidateDtype:
        return CandidateDtype(
            tensors={name: make_stats(error) for name in NAMES},
            parameter_errors={"a.weight": 0.0, "b.weight": 0.0},
            facts=CandidateFacts(num_buckets=4, bucket_flips={"a": Flips(count=0, of=8, largest_margin=0.0)}),
            constant_errors={"table": 0.0},
            recomputed={"gradient:a.weight": make_stats(0.0)},
            replay={"gradient:a.weight": ReplayError(make_stats(0.0), make_stats(1.0))},
        )

    return CandidateResult(
        dtypes={"float64": side(1e-7 * SHRINK), "float32": side(1e-7)},
        tokens=[Tokens("x y", [1, 2], "x")],
    )


def test_a_correct_port_passes(reference, candidate):
    verdict = judge(reference, candidate)
    assert verdict.passed and list_findings(verdict) == [] and len(verdict.comparisons) == 2 * len(NAMES)


#: A tensor of each kind and of each run.
TENSOR_OF_EACH_RUN = (
    *("output:a", "logits", "loss", "gradient:a.weight", "gradient:input:a", "buffer:a.running_mean"),
    *("evaluation/output:a", "evaluation/logits", "evaluation/loss", "shorter/logits", "shorter/loss"),
    *("decoding/logits#2", "narrowed/logits", "unpadded/logits", "updated:a.weight", "updated:a.weight#3"),
)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", TENSOR_OF_EACH_RUN)
def test_a_tensor_of_each_run_is_judged_in_each_dtype(reference, candidate, name, dtype):
    reference.tensors[name] = make_record()
    for record in reference.tensors.values():
        record.noise["bfloat16"] = record.noise_max["bfloat16"] = [1e-2, 3e-2]
    ours = candidate.dtypes.setdefault(dtype, copy.deepcopy(candidate.dtypes["float32"]))
    for side in candidate.dtypes.values():
        side.tensors[name] = make_stats(0.0)
    assert judge(reference, candidate).passed
    ours.tensors[name] = make_stats(0.9)
    findings = [(finding.name, finding.dtype) for finding in judge(reference, candidate).findings]
    assert findings == [(name, dtype)]
    del ours.tensors[name]
    (finding,) = judge(reference, candidate).findings
    assert (finding.name, finding.message) == (name, "not computed by the port")


def test_an_error_that_float64_does_not_shrink_is_a_different_function(reference, candidate):
    candidate.dtypes["float64"].tensors["output:b"] = make_stats(1e-9)
    finding = first_at_fault(judge(reference, candidate), list(NAMES))
    assert (finding.verdict, finding.name) == ("semantics", "output:b")


def test_float32_may_be_only_as_inaccurate_as_the_reference(reference, candidate):
    ours = candidate.dtypes["float32"].tensors
    ours["output:a"] = make_stats(2.5e-7)
    assert judge(reference, candidate).passed
    ours["output:a"] = make_stats(5e-6)
    assert [f.verdict for f in judge(reference, candidate).findings] == ["rounding"]


def test_one_wrong_element_is_caught_by_the_maximum(reference, candidate):
    candidate.dtypes["float32"].tensors["output:a"].max = 1e-5
    assert not judge(reference, candidate).passed


def test_noise_as_large_as_the_tensor_is_no_baseline_for_float32(reference, candidate):
    reference.tensors["gradient:a.weight"] = make_record(rms=1.0, noise=84.0)
    candidate.dtypes["float32"].tensors["gradient:a.weight"] = make_stats(1000.0)
    verdict = judge(reference, candidate)
    assert verdict.passed
    assert any("float32 carries no information" in note for note in list_findings(verdict))
    candidate.dtypes["float64"].tensors["gradient:a.weight"] = make_stats(1e-5)
    assert [f.name for f in judge(reference, candidate).findings] == ["gradient:a.weight"]


def test_the_noise_of_float64_is_the_baseline_if_float32_has_saturated():
    """With an amplification of 1e10, float32 is off by the tensor's size, the maximum, and float64 by 1e-6."""
    saturated_record = make_record(rms=1.0, noise=1.0)
    saturated_record.noise["float64"] = [1e-6]
    saturated_record.noise_max["float64"] = [3e-6]
    assert compare("output:a", saturated_record, make_stats(2e-6), "float64").passed
    assert not compare("output:a", saturated_record, make_stats(1e-4), "float64").passed


def test_only_float64_is_judged_if_float32_overflows(reference, candidate):
    for name in NAMES[1:]:
        reference.tensors[name] = make_nonfinite_record("float32")
        candidate.dtypes["float32"].tensors[name] = make_overflow()
    verdict = judge(reference, candidate)
    assert [(f.verdict, f.name, f.dtype) for f in verdict.findings] == [("reference", NAMES[1], "float32")]
    assert "float32 here and in 3 tensors after it" in verdict.findings[0].message
    assert verdict.inconclusive and not attribution.is_attributable(verdict, ["float64", "float32"])
    assert len(verdict.comparisons) == len(NAMES) + 1
    del candidate.dtypes["float32"]
    verdict = judge(reference, candidate)
    assert verdict.passed and any("not finite in float32" in note for note in list_findings(verdict))
    candidate.dtypes["float64"].tensors[NAMES[2]] = make_stats(1e-9)
    verdict = judge(reference, candidate)
    assert [(f.verdict, f.name) for f in verdict.findings] == [("semantics", NAMES[2])] and not verdict.inconclusive


def test_the_truth_itself_must_be_finite(reference, candidate):
    loss = reference.tensors["loss"]
    loss.finite, loss.rms, loss.max = False, None, None
    verdict = judge(reference, candidate)
    assert {(f.name, f.dtype) for f in verdict.findings} == {("loss", "float64"), ("loss", "float32")}
    assert verdict.inconclusive


def test_a_port_that_overflows_unlike_the_reference_is_wrong(reference, candidate):
    reference.tensors["output:b"] = make_nonfinite_record("float32")
    candidate.dtypes["float64"].tensors["output:b"] = make_overflow()
    verdict = judge(reference, candidate)
    assert ("structure", "output:b", "float64") in [(f.verdict, f.name, f.dtype) for f in verdict.findings]
    assert not verdict.inconclusive


def test_results_that_depend_on_nonfinite_numbers_may_differ_only_in_float32(reference, candidate):
    reference.facts.bucket_slack, reference.facts.relu_moved = {"a": math.inf}, {"b": math.inf}
    flips = Flips(count=1, of=8, largest_margin=0.5)
    for dtype, wrong_kinds in (("float32", set()), ("float64", {"buckets", "signs"})):
        facts = candidate.dtypes[dtype].facts
        facts.bucket_flips, facts.relu_flips = {"a": flips}, {"b": flips}
        verdict = judge(reference, candidate)
        assert {f.verdict for f in verdict.findings} == wrong_kinds
        assert any("R32 is not finite there" in note for note in list_findings(verdict))


def test_the_floor_is_a_few_units_of_the_tensors_own_scale():
    lucky = make_record(rms=1e-30, noise=0.0)
    assert compare("loss", lucky, make_stats(1e-46), "float64").passed
    assert not compare("loss", lucky, make_stats(1e-43), "float64").passed


def test_a_gradient_that_is_exactly_zero_must_be_exactly_zero():
    zero = make_record(rms=0.0, noise=0.0)
    assert compare("gradient:x", zero, make_stats(0.0), "float64").passed
    assert not compare("gradient:x", zero, make_stats(1e-300), "float64").passed


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda ours: ours.tensors.pop("gradient:a.weight"), "gradient:a.weight"),
        (lambda ours: ours.tensors.update({"output:a": make_overflow()}), "output:a"),
        (lambda ours: ours.tensors.update({"output:a": TensorStats([1])}), "output:a"),
        (lambda ours: ours.tensors.update({"gradient:c": make_stats(0.0)}), "gradient:c"),
        (lambda ours: ours.parameter_errors.update({"a.weight": 1e-12}), "parameter:a.weight"),
        (lambda ours: ours.parameter_errors.pop("b.weight"), "parameter:b.weight"),
        (lambda ours: ours.draw_problems.update({"dropout:b": "a rate of 0.2"}), "dropout:b"),
        (lambda ours: ours.unused_draws.append("dropout:a"), "dropout:a"),
        (lambda ours: setattr(ours.facts, "num_buckets", 8), "num_buckets"),
        (lambda ours: ours.constant_errors.update(table=9.0), "parameter:table"),
        (lambda ours: ours.constant_errors.update(table=float("nan")), "parameter:table"),
        (lambda ours: ours.constant_errors.update({"buffer:table": 9.0}), "buffer:table"),
        (lambda ours: ours.constant_errors.update({"buffer:table": float("inf")}), "buffer:table"),
    ],
)
def test_structure_must_match_one_to_one(reference, candidate, change, name):
    change(candidate.dtypes["float64"])
    finding = first_at_fault(judge(reference, candidate), list(NAMES))
    assert (finding.verdict, finding.name) == ("structure", name)


def test_a_bucket_may_flip_only_at_a_tie_in_float32(reference, candidate):
    flips = candidate.dtypes["float32"].facts.bucket_flips
    flips["a"] = Flips(count=1, of=8, largest_margin=5e-5)
    verdict = judge(reference, candidate)
    assert verdict.passed and "1 of 8 differ, all within rounding" in list_findings(verdict)[0]
    flips["a"].largest_margin = 5e-3
    assert [f.verdict for f in judge(reference, candidate).findings] == ["buckets"]
    del flips["a"]
    candidate.dtypes["float64"].facts.bucket_flips["a"] = Flips(count=1, of=8, largest_margin=5e-5)
    assert [f.verdict for f in judge(reference, candidate).findings] == ["buckets"]


def test_a_choice_may_differ_only_within_rounding_of_a_tie(reference, candidate):
    reference.facts.choice_moved = {"b": 1e-6}
    flips = Flips(count=2, of=64, largest_margin=4e-6)
    candidate.dtypes["float32"].facts.choice_flips = {"b": flips}
    verdict = judge(reference, candidate)
    assert verdict.passed and list_findings(verdict) == [
        "float32: 2 choices (argmax, top-k, sort) differ, all within rounding of a tie"
    ]
    candidate.dtypes["float64"].facts.choice_flips = {"b": flips}
    verdict = judge(reference, candidate)
    assert [(f.verdict, f.name, f.dtype) for f in verdict.findings] == [("choices", "choice:b", "float64")]


def test_an_input_of_relu_may_change_its_sign_only_within_rounding_of_zero(reference, candidate):
    reference.facts.relu_moved = {"b": 1e-6}
    flips = Flips(count=2, of=64, largest_margin=4e-6)
    candidate.dtypes["float32"].facts.relu_flips = {"b": flips}
    verdict = judge(reference, candidate)
    assert verdict.passed and list_findings(verdict) == [
        "float32: 2 inputs of ReLU lie on the other side of 0, all within rounding of it"
    ]
    candidate.dtypes["float64"].facts.relu_flips = {"b": flips}
    assert [(f.verdict, f.name, f.dtype) for f in judge(reference, candidate).findings] == [
        ("signs", "relu:b", "float64")
    ]
    candidate.dtypes["float64"].facts.relu_flips = {"a": Flips(count=2, of=64, largest_margin=1e-300)}
    assert [f.name for f in judge(reference, candidate).findings] == ["relu:a"]  # the reference moves nothing there


@pytest.mark.parametrize("kind", ["recomputed", "replay"])
@pytest.mark.parametrize("error", [make_stats(1e-5), make_overflow(), TensorStats([], missing=True)])
def test_a_recomputing_backward_must_give_the_gradients_of_plain_autograd(reference, candidate, kind, error):
    measurement = {"recomputed": error, "replay": ReplayError(error, make_stats(1.0))}[kind]
    getattr(candidate.dtypes["float32"], kind)["gradient:a.weight"] = measurement
    assert [f.verdict for f in judge(reference, candidate).findings] == [kind]


@pytest.mark.parametrize(
    ("rms", "float64_noise", "float32_noise", "has_lost_digits"),
    [
        (2.9e-13, 4.5e-14, 7.8e-6, False),  # gradients of a CTRL's key biases: seeds 5016, 5040, 5073 of the sweep
        (6.4e-17, 4.4e-17, 2.7e-9, False),
        (7.3e-16, 3.3e-16, 1.0e-8, False),
        (1.0, 0.09, 1.0, False),
        (1.0, 0.134, 1.0, True),  # plain streams that have grown: seeds 5020 and 31082 of Reformer's sweep
        (1.0, 47.0, 1.0, True),
    ],
)
def test_a_gradient_is_lost_if_float64_loses_digits_that_float32_does_not_show(
    rms, float64_noise, float32_noise, has_lost_digits
):
    noise = {"float64": [0.0, float64_noise], "float32": [float32_noise] * 5}
    theirs = TensorRecord(shape=[4], rms=rms, max=rms, noise=noise, noise_max=noise)
    assert is_lost(theirs) == has_lost_digits
    wrong_stats = TensorStats(shape=[4], rms=10 * max(rms, float64_noise), max=40 * max(rms, float64_noise))
    assert compare("gradient:a", theirs, wrong_stats, "float64").passed == has_lost_digits


def test_two_backwards_may_differ_by_the_error_of_each(reference, candidate):
    """In float64 the bound is 1e-15, not the share of the gradient that float32 may be off by."""
    ours = candidate.dtypes["float64"]
    ours.recomputed["gradient:a.weight"] = make_stats(2e-15)
    assert judge(reference, candidate).passed
    ours.recomputed["gradient:a.weight"] = make_stats(3e-14)
    assert [f.verdict for f in judge(reference, candidate).findings] == ["recomputed"]


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_replayed_gradients_have_noise_in_proportion_to_their_size(reference, candidate, size):
    for error, verdicts in ((2e-7, []), (1e-5, ["replay"])):
        replay_error = ReplayError(make_stats(error * size), make_stats(size))
        candidate.dtypes["float32"].replay["gradient:a.weight"] = replay_error
        assert [f.verdict for f in judge(reference, candidate).findings] == verdicts


@pytest.mark.parametrize("has_draws", [False, True])
def test_plain_autograd_decides_whether_the_recomputing_backward_is_faulty(reference, candidate, has_draws):
    """The step's own gradients are equally wrong; the backward may repeat some of the draws."""
    ours = candidate.dtypes["float64"]
    ours.plain = {name: make_stats(0.0) for name in NAMES if name.startswith("gradient")}
    ours.tensors["gradient:b.weight"] = make_stats(1e-6)
    ours.recomputed["gradient:a.weight"] = ours.tensors["gradient:a.weight"] = make_stats(1e-6)
    if has_draws:
        ours.draw_problems["dropout:a#1"] = "the reference does not draw here"
    finding = first_at_fault(verdict := judge(reference, candidate), list(NAMES))
    assert (finding.verdict, finding.name) == ("recomputed", "gradient:a.weight")
    assert recomputing_at_fault(verdict) == {"float64"}
    ours.plain["gradient:b.weight"] = make_stats(1e-6)  # plain autograd is wrong, too
    finding = first_at_fault(verdict := judge(reference, candidate), list(NAMES))
    assert finding.name == ("dropout:a#1" if has_draws else "gradient:b.weight") and not recomputing_at_fault(verdict)
    ours.plain["gradient:b.weight"] = make_stats(0.0)
    ours.tensors["output:a"] = make_stats(1e-6)
    verdict = judge(reference, candidate)
    assert first_at_fault(verdict, list(NAMES)).name == ("dropout:a#1" if has_draws else "output:a")
    assert not recomputing_at_fault(verdict)


def test_wrong_gradients_are_blamed_on_the_recomputing_backward_if_plain_autograd_is_correct(reference, candidate):
    """Each of the two backwards may be within its bounds while the step's gradients are not."""
    ours = candidate.dtypes["float64"]
    ours.tensors["gradient:a.weight"] = make_stats(1e-14)
    assert recomputing_at_fault(judge(reference, candidate)) == set()  # the step uses plain autograd
    ours.plain = {"gradient:a.weight": make_stats(2e-15)}
    assert recomputing_at_fault(judge(reference, candidate)) == {"float64"}


def test_tokens_must_be_equal_text_for_text(reference, candidate):
    candidate.tokens = [Tokens("x y", [1, 3], "x")]
    findings = judge(reference, candidate).findings
    assert [(f.verdict, f.name) for f in findings] == [("tokenizer", "tokenizer:ids")]
    assert "ids of 'x y' differ: [1, 3], the reference gives [1, 2]" in findings[0].message


def test_the_shortest_wrong_text_is_shown_and_a_long_text_around_its_difference():
    text = "a" * 300 + " \x0bhere " + "b" * 300
    reference_ids, port_ids = list(range(100)), [*range(50), 7, *range(51, 100)]
    starts = [*range(50), 301, *range(400, 449)]
    reference, port = Tokens(text, reference_ids, text), Tokens(text, port_ids, text, starts=starts)
    [(name, message)] = find_token_faults([reference], [port])
    assert name == "tokenizer:ids" and "...'aaaaaaaaa \\x0bhere bbb" in message and len(message) < 300
    assert "from 50 on: ...[40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 7, 51" in message
    [(_, message)] = find_token_faults([reference, Tokens("\x0b", [1])], [port, Tokens("\x0b", [2])])
    assert message == "ids of '\\x0b' differ: [2], the reference gives [1]; those of 1 more of 2 texts, too"


def test_a_text_that_only_the_port_cannot_encode_is_a_finding():
    [(name, message)] = find_token_faults([Tokens("x", [1], "x")], [Tokens("x", error="KeyError: 7")])
    assert (name, message) == ("tokenizer:ids", "ids of 'x': the port ends with KeyError: 7")


def test_a_text_that_the_reference_cannot_encode_is_noted_and_not_compared(reference, candidate):
    reference.tokens = [Tokens(error="UnicodeEncodeError")]
    verdict = judge(reference, candidate)
    assert verdict.passed and "cannot encode 1" in list_findings(verdict)[0]


def test_the_first_drift_is_named_in_the_forward_and_the_last_in_the_backward(reference, candidate):
    faulty_candidate = copy.deepcopy(candidate)
    for name in ("output:b", "loss", "gradient:a.weight"):
        faulty_candidate.dtypes["float64"].tensors[name] = make_stats(1e-3)
    assert first_at_fault(judge(reference, faulty_candidate), list(NAMES)).name == "output:b"
    for name in ("gradient:a.weight", "gradient:b.weight"):
        candidate.dtypes["float64"].tensors[name] = make_stats(1e-3)
    assert first_at_fault(judge(reference, candidate), list(NAMES)).name == "gradient:b.weight"


def test_tensors_that_would_broadcast_are_not_compared():
    assert error_stats.measure_error(np.zeros((3, 1)), np.zeros((3, 3))).rms is None
    assert error_stats.measure_error(np.array([]), np.array([])).rms == 0.0
    assert error_stats.measure_error(np.array([np.nan]), np.array([np.nan])).finite is False


def test_the_rms_neither_overflows_nor_vanishes():
    for scale in (1e200, 1e-200, 1e-310):
        assert error_stats.describe(scale * np.array([3, 4])).rms == pytest.approx(scale * 5 / np.sqrt(2), rel=1e-9)


def test_sizes_of_parts_add_up_to_the_size_of_the_whole():
    values = np.random.default_rng(0).standard_t(3, 3 * error_stats.PIECE + 5)
    whole_stats = error_stats.describe(values)
    parts = RunningStats()
    for part in np.split(values, [7, 2 * error_stats.PIECE]):
        parts.add(from_json(RunningStats, json.loads(json.dumps(as_json(RunningStats.of(part))))))
    assert whole_stats.rms == pytest.approx(np.sqrt(np.mean(values**2)), rel=1e-13)
    joined_stats = parts.stats(values.shape)
    assert (joined_stats.rms, joined_stats.max) == (pytest.approx(whole_stats.rms, rel=1e-13), np.abs(values).max())
    values[5] = np.nan
    assert error_stats.describe(values).rms is None


def test_a_scalar_stays_a_scalar_on_disk(tmp_path):
    files.write_tensors(tmp_path / "x", {"loss": np.array(1.5), "t": np.arange(6.0).reshape(2, 3).T})
    read = files.read_tensors(tmp_path / "x")
    assert read["loss"].shape == () and (read["t"] == np.arange(6.0).reshape(2, 3).T).all()


def test_epsilons_are_compared_even_without_an_effect(reference, candidate):
    reference.facts.epsilons = {"norm": 1e-5}
    for side in candidate.dtypes.values():
        side.facts.epsilons = {"norm": 1e-5}
    assert judge(reference, candidate).passed
    candidate.dtypes["float64"].facts.epsilons = {"norm": 1e-4}
    (finding,) = judge(reference, candidate).findings
    assert (finding.verdict, finding.name) == ("structure", "epsilon:norm")
    assert finding.message == "0.0001, the reference has 1e-05"


def test_noise_in_the_references_float64_is_inconclusive_and_blames_no_port(reference, candidate):
    """Its float32 runs do not show it, because their error has already reached the size of the tensor."""
    noisy_record = make_record(noise=1.0)
    noisy_record.noise["float64"] = noisy_record.noise_max["float64"] = [2.0]
    reference.tensors["gradient:a.weight"] = noisy_record
    verdict = judge(reference, candidate)
    assert verdict.inconclusive and not verdict.passed
    [finding] = verdict.findings
    assert (finding.verdict, finding.name, finding.dtype) == ("reference", "gradient:a.weight", "float64")
    assert "off by up to 2.0e+00 of the tensor" in finding.message


def test_a_gradient_that_is_zero_except_for_rounding_is_compared(reference, candidate):
    """The reduced float32 error is as large as the remainder of the gradient in float64."""
    zero = make_record(rms=1e-17, noise=1e-8)
    reference.tensors["gradient:a.weight"] = zero
    candidate.dtypes["float64"].tensors["gradient:a.weight"] = make_stats(1e-17)
    assert judge(reference, candidate).passed
    candidate.dtypes["float64"].tensors["gradient:a.weight"] = make_stats(1e-10)
    [finding] = judge(reference, candidate).findings
    assert (finding.verdict, finding.name) == ("semantics", "gradient:a.weight")


@pytest.mark.parametrize(
    ("accepted_patterns", "errors", "passes"),
    [
        ("*", {"loss": 1.0, "logits": 1.0}, False),
        ("*", {"loss": 1.0, "logits": 0.0}, True),
        ("loss", {"loss": 1.0}, False),
        ("none", {}, False),
    ],
)
def test_a_port_without_an_agreeing_tensor_does_not_pass(accepted_patterns, errors, passes):
    reference = ReferenceResult(
        tensors={name: make_record() for name in errors}, accept={accepted_patterns: KnownDifference("known", 1e308)}
    )
    ours = CandidateDtype(tensors={name: make_stats(error) for name, error in errors.items()})
    verdict = judge(reference, CandidateResult(dtypes={"float64": ours}))
    assert verdict.passed == passes and verdict.inconclusive != passes
    if not passes:
        assert verdict.findings[0].message == "no tensor of the port agrees with the reference"


def test_a_tensor_without_information_in_float32_counts_as_no_agreement():
    reference = ReferenceResult(tensors={"gradient:key.bias": make_record(noise=1.0)})
    ours = CandidateDtype(tensors={"gradient:key.bias": make_stats(0.5)})
    assert judge(reference, CandidateResult(dtypes={"float32": ours})).inconclusive
