"""The verdict of a gate: it judges the measured differences of port and reference by the specification's bounds.

The specification is ``toolkit/parity/README.md``; its section "Verdicts" numbers the verdicts from 1 to 8. This module
only computes with measured numbers. The bounds on a tensor's difference are in :mod:`.bounds`. The finding that the
report names is chosen in :mod:`.culprit`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from toolkit.parity.exchange.results import (
    CandidateDtype,
    CandidateResult,
    Flips,
    GeneratorStats,
    NewWeights,
    ReferenceResult,
    Tokens,
)
from toolkit.parity.judge import diagnosis, initialization_tests, interfaces, loops, rng_tests, tokens
from toolkit.parity.judge.bounds import (
    UNIT,
    compare,
    describe_noise,
    is_lost,
    is_measured,
    largest_noise,
    ratio,
    rescale_record,
)
from toolkit.parity.judge.findings import ALONE, Finding, Verdict
from toolkit.parity.judge.known_differences import accept
from toolkit.parity.judge.notes import HINTS
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.evaluation import NO_HOOKS, name_choice, name_in_run, name_in_step
from toolkit.parity.measure.naming import TensorName

#: A ReLU input may have another sign than in R64 if |R64| is at most this many times the largest change by rounding
#: of any input of the ReLU, which R32 shows. The same factor holds for the scores of a choice such as argmax.
SIGN_FACTOR = 8.0
#: Largest allowed error of a constant in units of rounding of its operands: a power, a division, a product and a sine
#: in float32, each within a unit or two on either side. Torch's constants differ by 1 unit between processors.
CONSTANT_UNITS = 8.0


def judge(reference: ReferenceResult, candidate: CandidateResult) -> Verdict:
    """Return the verdict on the port, given the measurements of both workers.

    Args:
        reference: results of the reference.
        candidate: results of the port.
    """
    verdict = Verdict()
    for name, problem in candidate.loading_problems.items():
        verdict.find("structure", f"parameter:{name}", problem)
    for dtype, ours in candidate.dtypes.items():
        _judge_structure(reference, ours, dtype, verdict)
        if unusable := _find_not_finite(reference, dtype):
            verdict.find("reference", *unusable, dtype)
        if dtype == "float64" and (unusable := _find_lost_truth(reference)):
            verdict.find("reference", *unusable, dtype)
        _judge_buckets(reference, ours, dtype, verdict)
        _judge_signs(reference, ours, dtype, verdict)
        _judge_choices(reference, ours, dtype, verdict)
        for name in reference.tensors:
            if name in ours.tensors and _is_judged(name, dtype):
                _judge_tensor(name, reference, ours, dtype, verdict)
        _judge_unwatched(reference, ours, dtype, verdict)
        _judge_recomputed(reference, ours, dtype, verdict)
    uninformative_names = [
        name_in_step(one.name) for one in verdict.comparisons if one.dtype == "float32" and not one.informative
    ]
    verdict.notes += diagnosis.explain_lost_digits(
        reference.tensors, reference.facts.saturation, list(dict.fromkeys(uninformative_names))
    )
    if bfloat16_names := [one.name for one in verdict.comparisons if one.dtype == "bfloat16" and not one.informative]:
        verdict.note("uninformative-bfloat16", count=len(bfloat16_names), first=bfloat16_names[0])
    _judge_generators(candidate.generators, verdict)
    for loop, message in loops.faults(candidate.loops):
        verdict.find("loop", f"loop:{loop}", message, "float32")
    _judge_new_weights(candidate.new_weights, verdict)
    _judge_tokens(reference.tokens, candidate.tokens, verdict)
    if candidate.leaks:
        verdict.note("port-leaks", places=", ".join(candidate.leaks))
    if candidate.limited_lines:
        verdict.note("limited-loss", places=", ".join(candidate.limited_lines))
    if reference.accept:
        accept(verdict, reference.accept, reference.tensors)
    interfaces.set_aside(verdict, reference, candidate)
    if candidate.dtypes:  # otherwise only texts were compared
        _require_agreement(verdict)
    verdict.reference_faults = reference_faults(reference)
    _note_reference(reference, verdict, judged_in_float32="float32" in candidate.dtypes)
    return verdict


def _require_agreement(verdict: Verdict) -> None:
    """Add a finding if there is none, although no tensor agrees by the gate's own bounds.

    Args:
        verdict: verdict to add to.
    """
    if verdict.passed and not any(one.informative and one.passed for one in verdict.comparisons):
        count = len(verdict.accepted)
        reason = f"all {count} differences are accepted" if count else "none is compared, or carries information"
        verdict.find("reference", reason, "no tensor of the port agrees with the reference")


def reference_faults(reference: ReferenceResult) -> list[Finding]:
    """Return a finding for each source line of the reference that leaves float64, and for a wrong loss.

    A loss is wrong if it differs from its definition. The names of the findings are source lines.

    Args:
        reference: results of the reference.
    """
    message = "the reference computes in less than float64 although its model is float64"
    faults = [Finding("reference", place, message) for place in reference.narrowings]
    loss = reference.own_loss
    if loss and not loss.units <= loss.allowed:
        message = (
            f"the reference's loss is {loss.given:.15g}; from its own logits and labels it is "
            f"{loss.defined:.15g}, {loss.units:.1e} units of rounding away"
        )
        faults.append(Finding("reference", loss.place, message, "float64"))
    return faults


def _note_reference(reference: ReferenceResult, verdict: Verdict, *, judged_in_float32: bool) -> None:
    """Add the notes on the reference that a reader of the report needs.

    Args:
        reference: measurements of the reference.
        judged_in_float32: whether the port was compared in float32.
        verdict: verdict to add to.
    """
    if not judged_in_float32 and (not_finite := _find_not_finite(reference, "float32")):
        verdict.note("reference-not-finite", name=not_finite[0], message=not_finite[1])
    if verdict.passed:
        for fault in verdict.reference_faults:
            verdict.note("reference-fault-unseen", name=fault.name, message=fault.message)
    if reference.leaks:
        verdict.note("reference-leaks", places=", ".join(reference.leaks))
    verdict.notes.extend(one for one in reference.notes if not (verdict.passed and one.kind in HINTS))
    if reference.saturated_rows:
        verdict.note("saturated-rows", count=reference.saturated_rows)
    if reference.streamed:
        verdict.note("streamed")
    if reference.unhooked:
        verdict.note("reference-watched", count=len(reference.unhooked))


def _judge_structure(reference: ReferenceResult, ours: CandidateDtype, dtype: str, verdict: Verdict) -> None:
    """Judge verdict 1: each parameter, output, gradient and draw is finite and has a counterpart of the same shape.

    Constants, epsilons and the number of hash buckets are judged, too.

    Args:
        reference: measurements of the reference.
        ours: measurements of the port in ``dtype``.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """

    def add_finding(name: str, message: str) -> None:
        """Add a finding on the structure for the tensor, parameter or draw with this name."""
        verdict.find("structure", name, message, dtype)

    for name in reference.parameters:
        if name not in ours.parameter_errors and f"buffer:{name}" not in ours.tensors:
            add_finding(f"parameter:{name}", "a parameter of the reference that the port does not have")
    for name, error in ours.parameter_errors.items():
        gradients = [side.tensors.get(f"gradient:{name}") for side in (ours, reference)]
        shape, reference_shape = (gradient and gradient.shape for gradient in gradients)
        if shape and reference_shape and shape != reference_shape:
            add_finding(f"parameter:{name}", f"shape {shape}, the reference's is {reference_shape}")
        elif error != 0:
            add_finding(
                f"parameter:{name}", f"the port holds values that are off by {error:.1e} from those it was given"
            )
    for name, problem in ours.draw_problems.items():
        add_finding(name, problem)
    for name in ours.unused_draws:
        add_finding(name, "the reference draws here, the port does not")
    for name, theirs in reference.tensors.items():
        if name not in ours.tensors:
            if 0 not in theirs.shape:  # such as a tensor of an expert that no token chose
                add_finding(name, "not computed by the port")
        elif ours.tensors[name].shape != theirs.shape:
            add_finding(name, f"shape {ours.tensors[name].shape}, the reference's is {theirs.shape}")
        elif ours.tensors[name].rms is None and is_measured(theirs, dtype):
            add_finding(name, "holds NaN or Inf")
    for name, one in ours.tensors.items():
        if name not in reference.tensors and 0 not in one.shape:
            add_finding(name, ALONE)
    if ours.facts.num_buckets != reference.facts.num_buckets:
        add_finding("num_buckets", f"{ours.facts.num_buckets}, the reference chooses {reference.facts.num_buckets}")
    # Next to a residual stream of 10^6, ten times the epsilon is less than a digit of float64: no tensor shows it.
    for module, epsilon in ours.facts.epsilons.items():
        reference_epsilon = reference.facts.epsilons.get(module)
        if reference_epsilon is not None and epsilon != reference_epsilon:
            add_finding(f"epsilon:{module}", f"{epsilon:.3g}, the reference has {reference_epsilon:.3g}")
    _judge_constants(ours.constant_errors, dtype, verdict)
    if not ours.hooks_change_nothing:
        verdict.note("port-watched", dtype=dtype)


def _find_not_finite(reference: ReferenceResult, dtype: str) -> tuple[str, str] | None:
    """Return the name of the reference's first tensor that is not finite, and a message; None if all are finite.

    A port is not judged by such a reference, and does not pass.

    Args:
        reference: results of the reference.
        dtype: dtype of the port's run.
    """
    tensors = reference.tensors
    names = [name for name in tensors if _is_judged(name, dtype) and not is_measured(tensors[name], dtype)]
    rest = f" here and in {len(names) - 1} tensors after it" if len(names) > 1 else " here"
    where = f" ({reference.facts.first_nan})" if reference.facts.first_nan else ""
    return (names[0], f"the reference itself is not finite in {dtype}{where}{rest}") if names else None


def _find_lost_truth(reference: ReferenceResult) -> tuple[str, str] | None:
    """Return the name of the first tensor that lost its digits in R64, the reference's float64 run, and a message.

    Cancellation loses the digits (:func:`.is_lost`). The result is None without such a tensor.

    Args:
        reference: results of the reference.
    """
    tensors = reference.tensors
    names = [name for name in tensors if _is_judged(name, "float64") and is_lost(tensors[name])]
    if not names:
        return None
    noise = max(ratio(largest_noise(tensors[name], "float64"), tensors[name].rms or 0.0) for name in names)
    text = (
        f"the reference's own float64 is off by up to {noise:.1e} of the tensor, here and in {len(names) - 1} others: "
        "nothing can be measured by it"
    )
    if any(name.startswith("stream:") for name in tensors):
        text += (
            ". A backward that computes layers again from plain residual streams loses so much where they have grown "
            "large; model.residual: wide loses nothing"
        )
    return names[0], text


def _judge_buckets(reference: ReferenceResult, ours: CandidateDtype, dtype: str, verdict: Verdict) -> None:
    """Judge hash buckets (verdict 4): another bucket than R64's is excused only if both are equal within rounding.

    Args:
        reference: results of the reference.
        ours: measurements of the port in one dtype.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    for module, flips in ours.facts.bucket_flips.items():
        place = name_choice("buckets", module)
        if flips.shape is not None:
            verdict.find("buckets", place, f"shape {flips.shape} differs", dtype)
        elif flips.count:
            facts = reference.facts
            measured_slack = facts.bucket_slack_lowered if dtype == "bfloat16" else facts.bucket_slack
            slack = _slack(measured_slack[module], dtype)
            if not flips.largest_margin <= slack:
                margin_text = f"one where the best bucket led by {flips.largest_margin:.1e}; rounding: {slack:.1e}"
                verdict.find("buckets", place, f"{flips.count} of {flips.of} differ, {margin_text}", dtype)
            else:
                data = {"dtype": dtype, "module": module, "count": flips.count, "of": flips.of}
                if math.isfinite(slack):
                    verdict.note("bucket-flips", **data, slack=slack)
                else:
                    verdict.note("bucket-flips-not-finite", **data)


def _judge_signs(reference: ReferenceResult, ours: CandidateDtype, dtype: str, verdict: Verdict) -> None:
    """Judge the signs of ReLU inputs (verdict 4).

    The sign of an input may differ from R64 only if the input is 0 within rounding, which the reference's own float32
    measures. For all other comparisons both sides use the signs of R64.

    Args:
        reference: results of the reference.
        ours: measurements of the port in one dtype.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    num_excused = 0
    largest_moves = reference.facts.relu_moved_lowered if dtype == "bfloat16" else reference.facts.relu_moved
    for module, flips in ours.facts.relu_flips.items():
        slack = SIGN_FACTOR * _slack(largest_moves.get(module, 0.0), dtype)
        if not flips.largest_margin <= slack:
            verdict.find("signs", name_choice("relu", module), _sign_message(flips, slack), dtype)
        elif math.isfinite(slack):
            num_excused += flips.count
    if num_excused:
        verdict.note("sign-flips", dtype=dtype, count=num_excused)


def _sign_message(flips: Flips, slack: float) -> str:
    """Describe the ReLU inputs whose signs differ, and the magnitude that rounding allows.

    Args:
        flips: number and magnitude of the inputs whose signs differ.
        slack: magnitude that rounding allows.
    """
    text = f"{flips.count} of {flips.of} inputs have another sign, one of them where"
    return f"{text} it is {flips.largest_margin:.1e}; rounding: {slack:.1e}"


def _judge_choices(reference: ReferenceResult, ours: CandidateDtype, dtype: str, verdict: Verdict) -> None:
    """Judge the indices that argmax, top-k and sort of a user's pair choose (verdict 4).

    Scores may have another order than in R64 only if they are equal within rounding.

    Args:
        reference: results of the reference.
        ours: measurements of the port in one dtype.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    num_excused = 0
    for module, flips in ours.facts.choice_flips.items():
        slack = SIGN_FACTOR * _slack(reference.facts.choice_moved.get(module, 0.0), dtype)
        if not flips.largest_margin <= slack:
            margin_text = f"one where the score led by {flips.largest_margin:.1e}; rounding: {slack:.1e}"
            verdict.find(
                "choices", name_choice("choice", module), f"{flips.count} of {flips.of} differ, {margin_text}", dtype
            )
        elif math.isfinite(slack):
            num_excused += flips.count
    if num_excused:
        verdict.note("choice-flips", dtype=dtype, count=num_excused)


def _slack(float32_slack: float, dtype: str) -> float:
    """Return the largest margin of a discrete choice that rounding can reverse in a dtype.

    Args:
        float32_slack: margin measured in float32, or in bfloat16 for that dtype. It is infinite if R32 is not finite,
            which is
        not a measurement for float64.
        dtype: dtype of the port's run.
    """
    scaled_slack = float32_slack * (UNIT[dtype] / UNIT["float32"])
    return scaled_slack if dtype != "float64" or math.isfinite(scaled_slack) else 0.0


def _judge_constants(constant_errors: Mapping[str, float], dtype: str, verdict: Verdict) -> None:
    """Judge the constants that the port computes once, in float32, from the configuration (verdict 1).

    For all other comparisons both sides use the reference's constant: torch's own table differs between processors by a
    unit in the last place, which would look like a fault elsewhere.

    Args:
        constant_errors: error of each constant in units of rounding, by name.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    for name, error in constant_errors.items():
        if not error <= CONSTANT_UNITS:
            message = f"the port's own is off by {error:.3g} units of rounding; {CONSTANT_UNITS:.3g} are allowed"
            if math.isinf(error):
                message = "the port's own has other whole numbers, another shape or dtype, or is missing"
            verdict.find("structure", name if ":" in name else f"parameter:{name}", message, dtype)
        elif error and dtype == "float64":
            verdict.note("constant", name=name, units=error)


def _is_judged(name: str, dtype: str) -> bool:
    """Return whether a tensor is judged in a dtype.

    Losses after an update are judged only in float64. Each is a single number whose path amplifies rounding, and a few
    runs do not measure its spread. Correct ports reached 10 times the largest error of five runs.
    """
    tensor_name = TensorName.parse(name)
    return dtype == "float64" or not (tensor_name.kind == "loss" and tensor_name.is_of_training)


def _judge_tensor(
    name: str, reference: ReferenceResult, port_measurements: CandidateDtype, dtype: str, verdict: Verdict
) -> None:
    """Judge the difference of one tensor from R64 by its bounds (verdicts 2 and 3).

    Args:
        name: name of the tensor.
        reference: results of the reference.
        port_measurements: measurements of the port in one dtype.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    theirs, ours = reference.tensors[name], port_measurements.tensors[name]
    if ours.rms is None or not is_measured(theirs, dtype):
        return  # reported as a finding on the structure or on the reference
    comparison = compare(name, theirs, ours, dtype)
    verdict.comparisons.append(comparison)
    if not comparison.passed:
        noise_dtype = "bfloat16" if dtype == "bfloat16" else "float32"
        message = (
            f"off by {comparison.relative:.1e} of its size, {comparison.margin:.3g} times the bound; "
            f"the reference's own {noise_dtype} is {describe_noise(theirs, noise_dtype)}"
        )
        verdict.find("semantics" if dtype == "float64" else "rounding", name, message, dtype)


def _judge_unwatched(reference: ReferenceResult, ours: CandidateDtype, dtype: str, verdict: Verdict) -> None:
    """Judge the step without hooks, as in training, if it differs from the step with hooks (verdicts 2 and 3).

    If all bits are equal, no measurement of it exists.

    Args:
        reference: results of the reference.
        ours: measurements of the port in one dtype.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    for name, error in ours.unwatched.items():
        theirs, unwatched_name = reference.tensors.get(name), name_in_run(NO_HOOKS, name)
        if theirs is None or error.rms is None:
            verdict.find(
                "structure", unwatched_name, "with no hook on a layer, it is missing, or holds NaN or Inf", dtype
            )
        elif is_measured(theirs, dtype) and _is_judged(name, dtype):
            comparison = replace(compare(name, theirs, error, dtype), name=unwatched_name)
            verdict.comparisons.append(comparison)
            if not comparison.passed:
                off = f"off by {comparison.relative:.1e} of its size, {comparison.margin:.3g} times the bound"
                kind = "semantics" if dtype == "float64" else "rounding"
                verdict.find(kind, unwatched_name, f"with no hook on a layer, as training computes it: {off}", dtype)


def _judge_recomputed(reference: ReferenceResult, ours: CandidateDtype, dtype: str, verdict: Verdict) -> None:
    """Judge the port's recomputing backward by plain autograd of the same port and dtype.

    The gradients are compared with the recorded draws, and with the port's own draws.

    Args:
        reference: results of the reference.
        ours: measurements of the port in one dtype.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    tensors = reference.tensors
    measured_names = {name for name in tensors if is_measured(tensors[name], dtype)}
    for name in measured_names & ours.plain.keys():
        if ours.plain[name].rms is not None:
            verdict.plain.append(compare(name, tensors[name], ours.plain[name], dtype))
    for name, error in ours.recomputed.items():
        if name in measured_names:
            _judge_again("recomputed", "recorded draws", name, tensors[name], error, dtype, verdict)
    for name, replay_error in ours.replay.items():
        if name in measured_names:
            theirs = rescale_record(tensors[name], replay_error.size)
            _judge_again("replay", "the port's own generator", name, theirs, replay_error.error, dtype, verdict)


def _judge_again(
    kind: str,
    draw_source: str,
    name: str,
    theirs: TensorRecord,
    difference_stats: TensorStats,
    dtype: str,
    verdict: Verdict,
) -> None:
    """Judge one gradient of the recomputing backward by the same gradient of plain autograd.

    Args:
        kind: verdict of a finding, ``recomputed`` or ``replay``.
        draw_source: source of the draws, for the message.
        name: name of the gradient.
        theirs: record of the reference's gradient, which gives the bound.
        difference_stats: statistics of the difference between the two gradients.
        dtype: dtype of the port's run.
        verdict: verdict to add to.
    """
    if difference_stats.rms is None:
        verdict.find(kind, name, f"with {draw_source}, computed again, it is missing, or holds NaN or Inf", dtype)
        return
    comparison = compare(name, theirs, difference_stats, dtype)
    verdict.compared_by(kind).append(comparison)
    if not comparison.passed:
        off = f"it is off by {comparison.relative:.1e} of plain autograd's gradient, {comparison.margin:.3g} times"
        verdict.find(kind, name, f"with {draw_source}, computed again, {off} the bound", dtype)


def _judge_generators(generators: GeneratorStats, verdict: Verdict) -> None:
    """Judge the randomness and the rates of the port's own masks and rotations (verdict 7).

    The draws of a model that runs stage by stage are not measured.
    """
    for name, message in rng_tests.find_wrong_draws(generators):
        verdict.find("randomness", name, message)


def _judge_new_weights(new: NewWeights, verdict: Verdict) -> None:
    """Judge whether the port initializes parameters like the reference (verdict 8).

    The parameters of a model that runs stage by stage are not measured.
    """
    for name, message in initialization_tests.find_wrong_initializations(new):
        verdict.find("initialisation", f"new:{name}", message)


def _judge_tokens(theirs: list[Tokens] | None, ours: list[Tokens] | None, verdict: Verdict) -> None:
    """Judge whether the two tokenizers give equal results for each text (verdict 5).

    The results are ids, padding on either side, attention mask, decoded text and, if the task uses them, offsets.

    Args:
        theirs: results of the reference's tokenizer, one for each text; None if no tokenizer is compared.
        ours: results of the port's tokenizer, one for each text.
        verdict: verdict to add to.
    """
    if theirs and len(ours or []) != len(theirs):
        verdict.find("tokenizer", "tokenizer:ids", f"of {len(theirs)} texts the port has read {len(ours or [])}")
        return
    for name, message in tokens.find_token_faults(theirs or [], ours or []):
        verdict.find("tokenizer", name, message)
    if num_refused := sum(one.error is not None for one in theirs or []):
        verdict.note("tokenizer-refused", count=num_refused)
