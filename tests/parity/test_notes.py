"""Test the sentence of every kind of note, filled in with values from the gate."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from rich.console import Console

from toolkit.parity import gate
from toolkit.parity.exchange.records import from_json
from toolkit.parity.exchange.results import (
    CandidateDtype,
    CandidateFacts,
    CandidateResult,
    FirstDivergence,
    Flips,
    Note,
    OutputDifference,
    OwnLoss,
    Place,
    ReferenceFacts,
    ReferenceResult,
    Tokens,
    Training,
)
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.families.reformer.trial import SMALL_REFORMER as REFORMER_TRIAL
from toolkit.parity.followup import remeasure
from toolkit.parity.followup.precision import judge_operations
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.job.pair import (
    BufferFacts,
    Description,
    DrawFacts,
    KnownDifference,
    MaskFacts,
    PairMap,
    ParameterFacts,
    ParameterMatch,
    UnreachedFacts,
)
from toolkit.parity.judge import diagnosis, notes
from toolkit.parity.judge.bounds import Comparison
from toolkit.parity.judge.findings import AcceptedFinding, Finding, Verdict
from toolkit.parity.judge.known_differences import accept
from toolkit.parity.judge.trajectory import judge_trajectory
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.pairs.describe import Sides
from toolkit.parity.request.request import GateRequest

NAME = "gradient:transformer.h.1.ffn.0.weight"
REFERENCE = """
import json, types
from toolkit.parity.exchange.records import as_json
from toolkit.parity.families.ctrl import reference as ctrl
from toolkit.parity.families.reformer import reference as reformer
ctrl.uses_shared_mask = lambda: True
step = types.SimpleNamespace(was_bias_missing=True)
print(json.dumps(as_json([*ctrl.mask_notes(), *reformer.STEP.notes.fget(step)])))
"""


def make_record(noise: float = 1e-7, noise64: float = 1e-16) -> TensorRecord:
    runs = {"float64": [noise64], "float32": [noise]}
    return TensorRecord(shape=[4], rms=1.0, max=1.0, noise=runs, noise_max=runs)


def judge_notes(
    reference: ReferenceResult | None = None, ours: CandidateDtype | None = None, dtype="float64", **candidate
):
    dtypes = {} if ours is None else {dtype: ours}
    return judge(reference or ReferenceResult(), CandidateResult(dtypes=dtypes, **candidate)).notes


def judge_notes_of_agreeing_port(**reference) -> list[Note]:
    runs = {"float64": [1e-16], "float32": [1e-7]}
    theirs = TensorRecord(shape=[], rms=1.0, max=1.0, noise=runs, noise_max=runs)
    ours = CandidateDtype(tensors={"loss": TensorStats([], True, 0.0, 0.0, 0.0)})
    return judge_notes(ReferenceResult(tensors={"loss": theirs}, **reference), ours)


def bfloat16_notes() -> list[Note]:
    runs = {"float64": [1e-16], "float32": [1e-7], "bfloat16": [0.2]}
    theirs = TensorRecord(shape=[4], rms=1.0, max=1.0, noise=runs, noise_max=runs)
    ours = CandidateDtype(tensors={"loss": TensorStats([4], True, 0.2, 0.2, 0.2)})
    return judge_notes(ReferenceResult(tensors={"loss": theirs}), ours, "bfloat16")


def failed_trace_notes() -> list[Note]:
    verdict = Verdict()
    judge_operations(verdict, OperationTrace(problem="the text is too long"))
    return verdict.notes


def flip_notes(slack: float) -> list[Note]:
    reference = ReferenceResult(facts=ReferenceFacts(bucket_slack={"a": slack}))
    ours = CandidateDtype(facts=CandidateFacts(bucket_flips={"a": Flips(1, 8, 1e-5)}))
    return judge_notes(reference, ours, "float32")


def sign_flip_notes() -> list[Note]:
    ours = CandidateDtype(facts=CandidateFacts(relu_flips={"a": Flips(2, 8, 1e-6)}))
    return judge_notes(ReferenceResult(facts=ReferenceFacts(relu_moved={"a": 1e-6})), ours, "float32")


def choice_flip_notes() -> list[Note]:
    ours = CandidateDtype(facts=CandidateFacts(choice_flips={"a": Flips(2, 8, 1e-6)}))
    return judge_notes(ReferenceResult(facts=ReferenceFacts(choice_moved={"a": 1e-6})), ours, "float32")


def pair_notes() -> list[Note]:
    """Return the notes on a port that rounds and whose positions are a table."""
    table = BufferFacts("positions", [8], "other", False, "", "Net", None)
    port = Description(buffers=[table], draws=[DrawFacts("round:norm", [])])
    return Sides(Description(), port, PairMap(drawn_buffers=["u", "v"]), {}).notes()


def mask_notes(*hides: bool) -> list[Note]:
    """Return the notes on a reference that creates masks in its own lines.

    `hides` marks the masks that hide something.
    """
    mask_facts = [MaskFacts(f"net.py:{line}", 9, "<", "attention", hides) for line, hides in enumerate(hides, 7)]
    return [*Sides(Description(masks=mask_facts), Description(), PairMap(), {})._idle_masks()]


def unreached_notes(kind: str, operator: str) -> list[Note]:
    """Return the notes on a reference with a limit or a choice that has the same outcome everywhere on the batch."""
    description = Description(unreached_facts=[UnreachedFacts(kind, "net.py:7", operator)])
    return [*Sides(description, Description(), PairMap(), {})._unreached_limits()]


def test_a_mask_that_hides_something_gives_no_note():
    assert mask_notes() == mask_notes(True, True) == []
    assert [note.data for note in mask_notes(True, False, False)] == [
        {"side": "reference", "places": "net.py:8 (<), net.py:9 (<)"}
    ]


def conversion_notes() -> list[Note]:
    """Return the notes on a shifted norm weight, with and without a map for it, and on a parameter of another shape."""

    def weight(name: str, shape: list[int], constant: float | None) -> ParameterFacts:
        return ParameterFacts(name, shape, "other", False, "", "Net", 0, constant=constant)

    reference = Description([weight("norm.weight", [4], 0.0), weight("scale", [2], 1.0), weight("q", [4, 2, 2], None)])
    port = Description([weight("norm.weight", [4], 1.0), weight("scale", [2], 1.0), weight("query", [4, 4], None)])
    map_without_offset, map_with_offset = (
        PairMap([ParameterMatch("norm.weight", "norm.weight", offset=offset), ParameterMatch("scale", "scale")])
        for offset in (0.0, 1.0)
    )
    with_map = Sides(reference, port, map_with_offset, {}).notes()
    assert "other-initial-value" not in {note.kind for note in with_map}
    return [
        *Sides(reference, port, map_without_offset, {}).notes(),
        *(note for note in with_map if note.kind == "shifted"),
    ]


def judge_output_differences(read_share: float = 1.0, **differences: OutputDifference) -> Verdict:
    """Judge a loss that agrees and two outputs that it depends on, of a step and of its evaluation.

    Args:
        read_share: share of the output's elements that the loss depends on.
        differences: how the port's output differs in the ``step`` and in the ``evaluation``.
    """
    names = {"step": "output:a", "evaluation": "evaluation/output:a"}
    tensors = {name: make_record() for name in ("loss", *names.values())}
    reference = ReferenceResult(tensors=tensors, facts=ReferenceFacts(read={"output:a": read_share}))
    ours = CandidateDtype(tensors={name: TensorStats([4], rms=0.0, mean=0.0, max=0.0) for name in tensors})
    for run, difference in differences.items():
        ours.tensors[names[run]] = TensorStats([4], rms=1.0, mean=1.0, max=1.0)
        ours.differing_outputs[names[run]] = difference
    return judge(reference, CandidateResult({"float64": ours}))


def skipped_output_notes() -> list[Note]:
    """Return the notes on an output in another order that the loss depends on."""
    verdict = judge_output_differences(step=OutputDifference("rows", 0))
    assert verdict.passed and [output.name for output in verdict.set_aside] == ["output:a"]
    return verdict.notes


def test_rows_permuted_only_in_evaluation_are_skipped_if_the_loss_depends_on_all_of_them():
    verdict = judge_output_differences(evaluation=OutputDifference("rows", None))
    assert verdict.passed and [output.name for output in verdict.set_aside] == ["evaluation/output:a"]
    assert not judge_output_differences(evaluation=OutputDifference("", None)).passed
    assert not judge_output_differences(read_share=0.5, evaluation=OutputDifference("rows", None)).passed
    assert not judge_output_differences(step=OutputDifference("", 1), evaluation=OutputDifference("rows", None)).passed


def test_conversion_hints_are_omitted_if_the_port_agrees():
    hint = Note("other-shape", {"name": "q", "port": "query", "theirs": "[4, 2, 2]", "ours": "[4, 4]"})
    reference = ReferenceResult(notes=[hint], tensors={"loss": make_record()})
    agreeing = CandidateDtype(tensors={"loss": TensorStats([4], rms=0.0, mean=0.0, max=0.0)})
    assert hint not in judge(reference, CandidateResult({"float64": agreeing})).notes
    faulty = CandidateResult(loading_problems={"q": "is another"})
    assert hint in judge(reference, faulty).notes


def zero_row_notes() -> list[Note]:
    embedding = ParameterFacts("words.weight", [3, 2], "embedding", False, "words", "Embedding", 0)
    weights = {"words.weight": np.float32([[1, 0], [0, 0], [0, 1]])}
    return Sides(Description(parameters=[embedding]), Description(), PairMap(), weights).notes()


def accepted_notes() -> list[Note]:
    """Return the notes on two accepted differences of half a tensor; one pattern of the map matches nothing."""
    names = ("output:a", "output:b", "loss")
    verdict = Verdict(
        comparisons=[Comparison(name, "float64", 0.5, 0.1, 0.5, 0.1, 0.5, True) for name in names],
        findings=[Finding("semantics", name, "off", "float64") for name in names[:2]],
    )
    accepted_patterns = {"output:*": KnownDifference("biased", 1.0), "loss": KnownDifference("once", 1.0)}
    accept(verdict, {**accepted_patterns, "no.such": KnownDifference("typo", 1.0)}, names)
    assert verdict.passed and [accepted_finding.finding.name for accepted_finding in verdict.accepted] == [
        "output:a",
        "output:b",
    ]
    return verdict.notes


def training_notes(diverged_step: int = 0) -> list[Note]:
    """Return the notes on a pair's training with an accepted output."""
    verdict = judge_training("output:a", diverged_step)
    assert verdict.passed and verdict.training_unjudged_from == (diverged_step or None)
    return verdict.notes


def judge_training(accepted_name: str, diverged_step: int) -> Verdict:
    """Judge a training with one accepted difference; the sides differ from step `parted` on, or never if it is 0."""
    training = Training(3, Place("", ""), {"R64": [2.0, 1.5, 1.0]}, margins={"float64": 0.5})
    training.partings += [FirstDivergence("float64", diverged_step, "loss", "off")] if diverged_step else []
    finding = Finding("semantics", accepted_name, "off", "float64")
    verdict = Verdict(accepted=[AcceptedFinding(finding, 1e-12, "*", "known", 1e-9)])
    judge_trajectory(training, verdict)
    return verdict


@pytest.mark.parametrize("name", ["output:a#1", "logits", "loss", "gradient:w", "gradient:output:a"])
def test_an_accepted_difference_before_a_gradient_excuses_a_different_training(name):
    assert judge_training(name, 2).passed


@pytest.mark.parametrize("name", ["buffer:bn.running_var", "evaluation/output:a", "evaluation/loss", "updated:w#1"])
def test_other_accepted_differences_excuse_no_different_training(name):
    verdict = judge_training(name, 2)
    assert [(finding.verdict, finding.name) for finding in verdict.findings] == [("trajectory", "step 2/loss")]
    assert verdict.training_unjudged_from is None


def test_a_difference_beyond_the_accepted_bound_stays_a_finding():
    verdict = Verdict(
        comparisons=[Comparison("output:a", "float64", 0.5, 0.1, 0.5, 0.1, 0.5, True)],
        findings=[Finding("semantics", "output:a", "off", "float64"), Finding("structure", "output:b", "missing")],
    )
    accept(verdict, {"output:*": KnownDifference("biased", 0.4)}, ["output:a", "output:b"])
    assert len(verdict.findings) == 2 and not verdict.accepted and not verdict.notes


def judge_with_accepted(accepted_bounds: dict[str, float], errors: dict[tuple[str, str], float]) -> Verdict:
    """Judge findings with these relative errors, by name and dtype, if patterns are accepted within bounds."""
    verdict = Verdict(
        comparisons=[Comparison(name, dtype, e, 0.1, e, 0.1, e, True) for (name, dtype), e in errors.items()],
        findings=[Finding("semantics", name, "off", dtype) for name, dtype in errors],
    )
    accept(
        verdict,
        {pattern: KnownDifference("told", bound) for pattern, bound in accepted_bounds.items()},
        [name for name, _ in errors],
    )
    return verdict


@pytest.mark.parametrize(
    ("pattern", "is_accepted"),
    [
        *(dict.fromkeys(("output:a.b", "output:*", "*a.b", "output:?.b", "output:[ab].b"), True).items()),
        *(
            dict.fromkeys(
                ("output:a", "put:a.b", "output:a.", "OUTPUT:a.b", "output:A.b", "output:[!a].b"), False
            ).items()
        ),
    ],
)
def test_a_pattern_matches_whole_names_case_sensitively(pattern, is_accepted):
    verdict = judge_with_accepted({pattern: 1.0}, {("output:a.b", "float64"): 0.5})
    assert (len(verdict.findings), len(verdict.accepted)) == ((0, 1) if is_accepted else (1, 0))
    assert [note.kind for note in verdict.notes] == ["accepted" if is_accepted else "accepted-unknown"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_difference_is_accepted_by_the_error_in_its_own_dtype(dtype):
    errors = {("loss", one): 0.9 if one == dtype else 0.01 for one in ("float64", "float32")}
    verdict = judge_with_accepted({"loss": 0.5}, errors)
    assert [finding.dtype for finding in verdict.findings] == [dtype]
    assert [one.finding.dtype for one in verdict.accepted] == [next(one for _, one in errors if one != dtype)]


def test_a_finding_without_an_error_in_its_dtype_is_not_accepted():
    verdict = Verdict(
        comparisons=[Comparison("loss", "float64", 0.1, 0.1, 0.1, 0.1, 0.1, True)],
        findings=[Finding("structure", "loss", "holds NaN", "float32"), Finding("randomness", "loss", "no draw")],
    )
    accept(verdict, {"loss": KnownDifference("told", 1.0)}, ["loss"])
    assert len(verdict.findings) == 2 and not verdict.accepted


def test_the_first_matching_pattern_decides_and_the_largest_error_is_noted():
    errors = {("output:a", "float64"): 0.5, ("output:b", "float64"): 0.2, ("output:c", "float64"): 0.7}
    verdict = judge_with_accepted({"output:a": 0.1, "output:*": 1.0}, errors)
    assert [finding.name for finding in verdict.findings] == ["output:a"]
    (note,) = verdict.notes
    assert (note.data["pattern"], note.data["count"], note.data["worst"]) == ("output:*", 2, 0.7)


def nonfinite_notes() -> list[Note]:
    nan_record = make_record()
    nan_record.noise["float32"] = [None]
    return judge_notes(
        ReferenceResult(tensors={"loss": nan_record}),
        CandidateDtype(tensors={"loss": TensorStats([4], rms=0.0, max=0.0)}),
    )


def make_near_verdict(margin: float = 2.0) -> Verdict:
    comparison = Comparison("loss", "float32", margin, 1.0, margin, 1.0, margin, True)
    return Verdict(comparisons=[comparison], findings=[Finding("rounding", "loss", "off", "float32")])


def not_remeasured_notes() -> list[Note]:
    verdict = make_near_verdict()
    remeasure.note_unmeasured(verdict)
    return verdict.notes


def remeasuring_notes(tmp_path, monkeypatch) -> list[Note]:
    monkeypatch.setattr(remeasure, "measure_again", lambda *_: [{"loss": make_record()}])
    monkeypatch.setattr(remeasure, "num_more_runs", lambda job: remeasure.MORE_RUNS)
    results = [(ReferenceResult(tensors={"loss": make_record()}), make_near_verdict())]
    [reference] = remeasure.remeasure_near_bounds([tmp_path], results, Console(file=io.StringIO()), "python")
    return reference.notes


ONE_MICRO_BATCH = TrainingSettings(gradient_accumulation_steps=1)


def brief_notes() -> list[Note]:
    verdict, config = Verdict(), {**REFORMER_TRIAL, "vocab_size": 10**8}
    request = GateRequest("reformer", "sequence_classification", config, {}, {}, training=ONE_MICRO_BATCH)
    gate.note_extent(verdict, request)
    return verdict.notes


def widening_notes(length: int) -> list[Note]:
    verdict, batch = Verdict(), {"input_ids": np.zeros((1, length), np.int64)}
    request = GateRequest("ctrl", "causal_lm", CTRL_TRIAL, {}, batch, widened=True, training=ONE_MICRO_BATCH)
    gate.note_extent(verdict, request)
    return verdict.notes


def short_training_notes(examples: int, **settings) -> list[Note]:
    verdict, labels = Verdict(), np.arange(examples) % 2
    batch = {"input_ids": np.zeros((examples, 8), np.int64), "labels": labels}
    request = GateRequest(
        "ctrl", "sequence_classification", CTRL_TRIAL, {}, batch, training=TrainingSettings(**settings)
    )
    gate.note_extent(verdict, request)
    return verdict.notes


#: By kind, a function that produces the note, and the start of its sentence.
SENTENCES: dict[str, tuple[Callable[[], Iterable[Note]], str]] = {
    "reference-leaks": (
        lambda: judge_notes(ReferenceResult(leaks=["a.py:1", "b.py:2"])),
        "the reference computes in float32 at a.py:1, b.py:2 although its model is float64;",
    ),
    "reference-fault-unseen": (
        lambda: judge_notes_of_agreeing_port(own_loss=OwnLoss(1.0, 1.5, 1e15, 64.0, "loss.py:3")),
        "the reference's loss is 1; from its own logits and labels it is 1.5, 1.0e+15 units of rounding away "
        "(loss.py:3); no tensor shows it",
    ),
    "reference-not-finite": (
        nonfinite_notes,
        "the reference itself is not finite in float32 here (loss); float64 was measured by its own noise alone",
    ),
    "reference-watched": (
        lambda: judge_notes(ReferenceResult(unhooked=["loss", "logits"])),
        "watching the reference changes 2 of its float64 tensors",
    ),
    "saturated-rows": (
        lambda: judge_notes(ReferenceResult(saturated_rows=17)),
        "in 17 attention rows every score is masked; there",
    ),
    "constant": (
        lambda: judge_notes(ours=CandidateDtype(constant_errors={"transformer.pos_encoding": 1.26})),
        "transformer.pos_encoding: the port's own is within 1.3 units of rounding of the reference's",
    ),
    "port-watched": (
        lambda: judge_notes(ours=CandidateDtype(hooks_change_nothing=False)),
        "float64: the step as training makes it, unwatched, differs in its last bits; it was judged, too",
    ),
    "bucket-flips": (
        lambda: flip_notes(1e-4),
        "float32: buckets:a: 1 of 8 differ, all within rounding of a tie (1.0e-04)",
    ),
    "bucket-flips-not-finite": (
        lambda: flip_notes(math.inf),
        "float32: buckets:a: 1 of 8 differ, R32 is not finite there",
    ),
    "sign-flips": (sign_flip_notes, "float32: 2 inputs of ReLU lie on the other side of 0, all within rounding of it"),
    "choice-flips": (
        choice_flip_notes,
        "float32: 2 choices (argmax, top-k, sort) differ, all within rounding of a tie",
    ),
    "choices-alone": (
        pair_notes,
        "the port chooses by size, sign or order in norm (round), and does not get the other side's choices there",
    ),
    "buffers-alone": (
        pair_notes,
        "only the port holds positions, which is no state: no checkpoint holds it, and a step",
    ),
    "buffers-drawn": (
        pair_notes,
        "drawn at random when a side is built, so that both begin with the reference's: u, v",
    ),
    "masks-idle": (
        lambda: mask_notes(False),
        "the reference makes a mask at net.py:7 (<) that excludes nothing on this batch, so a fault in its bound does",
    ),
    "limits-idle": (
        lambda: unreached_notes("limit", "clamp"),
        "the reference limits whole numbers at net.py:7 (clamp), and no number of this batch is changed, so a fault in",
    ),
    "choices-idle": (
        lambda: unreached_notes("choice", "<"),
        "the reference chooses between two results by the comparison at net.py:7 (<), and takes the same one",
    ),
    "shifted": (conversion_notes, "the port adds a number to norm.weight, as the map says; weight decay then pulls"),
    "other-initial-value": (
        conversion_notes,
        "norm.weight is 0 when the reference is built, and 1 in the port; if the port's loader adds the difference, "
        "write below parameters in the map: norm.weight: 1 + norm.weight",
    ),
    "other-shape": (
        conversion_notes,
        "q of the reference is [4, 2, 2] in torch's layout, and query of the port is [4, 4]; if a loader reshapes it, "
        "write below parameters in the map: q: query, or q: query.T",
    ),
    "outputs-set-aside": (
        skipped_output_notes,
        "not compared, because their shape, order or content differs: the outputs of a (1 in all); everything",
    ),
    "zero-row": (zero_row_notes, "row 1 of words.weight is zero, as in new weights with a padding_idx. Only trained"),
    "accepted": (
        accepted_notes,
        "2 differences are accepted by output:* (biased): up to 5.0e-01 of a tensor, 1.0e+00 at most",
    ),
    "accepted-unused": (accepted_notes, "loss is accepted (once), but what it names no longer differs"),
    "accepted-unknown": (accepted_notes, "no.such is accepted (typo), but nothing that is compared has such a name"),
    "trained": (
        lambda: training_notes(),
        "3 steps of each side by itself: the loss goes from 2 to 1; float64 at 0.5 of its band",
    ),
    "trained-with-differences": (
        lambda: training_notes(2),
        "3 steps of each side by itself: the loss goes from 2 to 1; the two part in step 2, which",
    ),
    "tokenizer-refused": (
        lambda: judge_notes(ReferenceResult(tokens=[Tokens(error="refused")]), tokens=[Tokens("x", [1])]),
        "tokenizer: the reference cannot encode 1 of the texts; they were not compared",
    ),
    "uninformative": (
        lambda: diagnosis.explain_lost_digits({NAME: make_record(1.0)}, {}, [NAME]),
        "float32 carries no information in 1 tensors (the reference's own error exceeds a tenth of them), the first "
        f"of them {NAME}; there float64 alone decided",
    ),
    "cancelled": (
        lambda: diagnosis.explain_lost_digits({NAME: make_record(1.0, 1.0)}, {}, [NAME]),
        f"1 of the tensors in which float32 carries no information are zero by cancellation, the first of them {NAME};",
    ),
    "uninformative-bfloat16": (
        bfloat16_notes,
        "bfloat16 carries no information in 1 tensors of the free run (the reference's own error exceeds a tenth of "
        "them), the first of them loss; there each operation on its own input decided",
    ),
    "operations-unseen": (
        failed_trace_notes,
        "in bfloat16 the operations were not judged one by one (the text is too long): an operation that wrongly",
    ),
    "lost": (
        lambda: diagnosis.explain_lost_digits({NAME: make_record(1.0)}, {}, [NAME]),
        "float32 loses 1 gradients, from transformer.h.1 down: neither saturated attention nor",
    ),
    "streamed": (
        lambda: judge_notes(ReferenceResult(streamed=True)),
        "stage by stage: the gate does not compare the optimizer's",
    ),
    "brief": (brief_notes, "a model this large: the gate does not compare the step without hooks,"),
    "port-leaks": (
        lambda: judge_notes(leaks=["a.py:1", "b.py:2"]),
        "the port computes in float32 at a.py:1, b.py:2 although its model is float64;",
    ),
    "limited-loss": (
        lambda: judge_notes(limited_lines=["a.py:1", "b.py:2"]),
        "at a.py:1, b.py:2 some scores lie more than 64 below the largest. Paddle's CPU kernels count them as 64 below",
    ),
    "pair-matched": (
        lambda: Sides(Description(), Description(), PairMap([ParameterMatch("a", "b", certain=False)]), {}).notes(),
        "1 parameters, 0 modules' outputs and 0 random draws of the two sides were matched; 1 of the parameters by a",
    ),
    "widened": (lambda: widening_notes(48), "compared on 1 examples of the run and 4 made-up ones"),
    "narrow": (
        lambda: widening_notes(2**13),
        "compared on 1 examples of the run and 0 made-up ones. These are too few",
    ),
    "one-update": (lambda: short_training_notes(3, max_steps=1), "the run makes one update, and so did the gate. The"),
    "one-micro-batch": (
        lambda: short_training_notes(2, gradient_accumulation_steps=4),
        "the run accumulates 4 micro-batches of 2, but the gate had labels of 2 examples, which is one",
    ),
    "not-remeasured": (not_remeasured_notes, "every difference is within 10 times its bound. That may be chance"),
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_each_note_has_a_sentence(kind):
    make, sentence = SENTENCES[kind]
    (note,) = (note for note in make() if note.kind == kind)
    assert notes.text(note).startswith(sentence) and not re.search("[{}]", notes.text(note))
    assert notes.as_content(note) == {"kind": kind, "data": note.data, "text": notes.text(note)}


@pytest.mark.parametrize(
    ("examples", "settings"), [(3, {}), (2, {"gradient_accumulation_steps": 1}), (3, {"max_steps": 2})]
)
def test_a_gate_on_the_complete_training_has_no_training_note(examples, settings):
    assert short_training_notes(examples, **settings) == []


def test_a_difference_of_the_run_has_a_sentence():
    verdict = Verdict()
    verdict.note("not-run", what="it computes in bfloat16")
    assert notes.text(verdict.notes[0]) == "the run differs from this gate: it computes in bfloat16"


def test_the_number_of_rounding_runs_has_a_sentence(tmp_path, monkeypatch):
    (note,) = remeasuring_notes(tmp_path, monkeypatch)
    assert note.kind == "remeasured" and notes.text(note) == (
        "the reference's rounding was measured by 2 float32 and 2 float64 runs, since by 1 float32 and 1 float64 alone "
        "loss was at 2 of its bound in float32"
    )


def test_corrections_of_the_reference_have_sentences():
    """Run the reference's own process, which sends its notes as JSON."""
    process = subprocess.run([sys.executable, "-c", REFERENCE], capture_output=True, text=True, check=True)
    mask, bias = from_json(list[Note], json.loads(process.stdout.splitlines()[-1]))
    assert (mask.kind, bias.kind) == ("reference-mask", "reference-bias")
    assert notes.text(mask).startswith("the reference masks later tokens with the smallest number of the dtype;")
    assert notes.text(bias).startswith("the reference holds lm_head.bias and does not add it to its ")


def test_every_sentence_has_a_test():
    assert {
        *SENTENCES,
        "remeasured",
        "constants-rounded",
        "reference-mask",
        "reference-bias",
        "not-run",
        "length",
        "forward-only",
        "not-trained",
        "brief-pair",
        "sketched",
        "outputs-left-out",
        "outputs-choices",
        "outputs-rounded",
    } == set(notes.TEXTS)
