"""The verdicts of PARITY.md: what may differ between the port and the reference. Pure arithmetic.

By how much a tensor may differ is in :mod:`.bounds`; which of the findings is named in :mod:`.culprit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from toolkit.parity.judge import diagnosis, rng_tests
from toolkit.parity.judge.bounds import UNINFORMATIVE, UNIT, Comparison, compare, float32_noise, is_measured

#: Verdicts by which a tensor of the step differs; the others say themselves where they look.
OF_TENSORS = ("semantics", "rounding")
#: A backward that computes layers again, against plain autograd of the same port and dtype, relative to the gradient.
RECOMPUTED_LIMIT = 1e-5
#: An input of ReLU may change its sign where R64 has it within so many times what R32 moves any of them by.
SIGN_FACTOR = 8.0
#: How far a constant may be off, in units of rounding of what it is computed from: a power, a division, a product and
#: a sine in float32, each within a unit or two on either side. Torch's own differs by 1 from one processor to another.
CONSTANT_UNITS = 8.0


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        verdict: structure, buckets, signs, semantics, rounding, recomputed, replay, randomness or tokenizer;
            ``reference`` where the reference itself is at fault, or has nothing to be compared with.
        name: the tensor, parameter, draw or text concerned.
        message: what is wrong with it, with the figures.
        dtype: empty where it concerns all.
    """

    verdict: str
    name: str
    message: str
    dtype: str = ""


@dataclass
class Verdict:
    """Everything that was compared, and everything that was found wrong.

    Attributes:
        reference_faults: what is wrong with the reference. A port that differs from such a reference is not shown to
            be wrong; one that agrees all the same is right.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reference_faults: list[Finding] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def inconclusive(self) -> bool:
        """Nothing that was found says anything of the port: the reference is at fault, or not finite."""
        of_reference = all(finding.verdict == "reference" for finding in self.findings)
        return bool(self.findings and (self.reference_faults or of_reference))

    def worst(self, dtype: str, count: int) -> list[Comparison]:
        """The ``count`` comparisons of a dtype that come nearest to their bounds, or exceed them most."""
        chosen = [c for c in self.comparisons if c.dtype == dtype and c.informative]
        return sorted(chosen, key=lambda c: c.margin, reverse=True)[:count]


def judge(reference: dict[str, Any], candidate: dict[str, Any]) -> Verdict:
    """Compare two ``result.json`` (see :mod:`.bundle`)."""
    verdict = Verdict()
    for dtype, ours in candidate["dtypes"].items():
        _judge_structure(reference, ours, dtype, verdict)
        if lost := _not_finite(reference, dtype):
            verdict.findings.append(Finding("reference", *lost, dtype))
        _judge_buckets(reference, ours, dtype, verdict)
        _judge_signs(reference, ours, dtype, verdict)
        for name, theirs in reference["tensors"].items():
            if name in ours["tensors"] and _is_judged(name, dtype):
                _judge_tensor(name, theirs, ours["tensors"][name], dtype, verdict)
        _judge_recomputed(reference, ours, dtype, verdict)
    silent = [comparison.name for comparison in verdict.comparisons if not comparison.informative]
    verdict.notes += diagnosis.lost(reference["tensors"], reference["facts"].get("saturation", {}), silent)
    if "float32" not in candidate["dtypes"] and (lost := _not_finite(reference, "float32")):
        verdict.notes.append(f"{lost[1]} ({lost[0]}); float64 was measured by its own noise alone")
    _judge_generators(candidate.get("generators", {}), verdict)
    _judge_tokens(reference["tokens"], candidate["tokens"], verdict)
    verdict.reference_faults = reference_faults(reference)
    if verdict.passed:
        verdict.notes.extend(
            f"{fault.message} ({fault.name}); no tensor shows it" for fault in verdict.reference_faults
        )
    if reference["leaks"]:
        verdict.notes.append(
            f"the reference computes in float32 at {', '.join(reference['leaks'])} although its model is float64; "
            "it was made to stay in float64"
        )
    verdict.notes.extend(reference.get("notes", []))
    if reference["saturated_rows"]:
        verdict.notes.append(
            f"in {reference['saturated_rows']} attention rows every score is masked; there the reference's "
            "exp(x - logsumexp(x)) loses its digits and was computed as (x - max) - log(sum(exp(x - max)))"
        )
    if reference.get("streamed"):
        verdict.notes.append(
            "stage by stage; the optimizer's step, what watching changes, computing layers again, and the port's own "
            "generator are not compared: whole models show them"
        )
    if reference["unhooked"]:
        verdict.notes.append(f"watching the reference changes {len(reference['unhooked'])} of its float64 tensors")
    return verdict


def reference_faults(reference: dict) -> list[Finding]:
    """Where the reference leaves float64 and was not kept from it, and a loss that is not the one it is defined to be:
    the findings' names are source lines."""
    faults = [
        Finding("reference", place, "the reference computes in less than float64 although its model is float64")
        for place in reference.get("narrowings", [])
    ]
    loss = reference.get("own_loss")
    if loss and not loss["units"] <= loss["allowed"]:
        message = (
            f"the reference's loss is {loss['given']:.15g}; from its own logits and labels it is "
            f"{loss['defined']:.15g}, {loss['units']:.1e} units of rounding away"
        )
        faults.append(Finding("reference", loss["place"], message, "float64"))
    return faults


def _judge_structure(reference: dict, ours: dict, dtype: str, verdict: Verdict) -> None:
    """Verdict 1: every parameter, output, gradient and draw has its counterpart, of the same shape, finite."""

    def wrong(name: str, message: str) -> None:
        verdict.findings.append(Finding("structure", name, message, dtype))

    theirs = reference["tensors"]
    for name in reference["parameters"]:
        if name not in ours["parameter_errors"]:
            wrong(f"parameter:{name}", "a parameter of the reference that the port does not have")
    for name, error in ours["parameter_errors"].items():
        if error != 0:
            wrong(f"parameter:{name}", f"the port holds values that are off by {error:.1e} from those it was given")
    for name, problem in ours["draw_problems"].items():
        wrong(name, problem)
    for name in ours["unused_draws"]:
        wrong(name, "the reference draws here, the port does not")
    for name, tensor in theirs.items():
        if name not in ours["tensors"]:
            wrong(name, "not computed by the port")
        elif ours["tensors"][name]["shape"] != tensor["shape"]:
            wrong(name, f"shape {ours['tensors'][name]['shape']}, the reference's is {tensor['shape']}")
        elif ours["tensors"][name]["rms"] is None and is_measured(tensor, dtype):
            wrong(name, "empty, or holds NaN or Inf")
    for name in ours["tensors"]:
        if name not in theirs:
            wrong(name, "computed by the port, has no counterpart in the reference")
    buckets = [side["facts"].get("num_buckets") for side in (ours, reference)]
    if buckets[0] != buckets[1]:
        wrong("num_buckets", f"{buckets[0]}, the reference chooses {buckets[1]}")
    # Beside a residual stream of 10^6, ten times the epsilon is less than a digit of float64: no figure shows it.
    for module, epsilon in ours["facts"].get("epsilons", {}).items():
        theirs_too = reference["facts"].get("epsilons", {}).get(module)
        if theirs_too is not None and epsilon != theirs_too:
            wrong(f"epsilon:{module}", f"{epsilon:.3g}, the reference has {theirs_too:.3g}")
    _judge_constants(ours["constant_errors"], dtype, verdict)
    if not ours["hooks_change_nothing"]:
        verdict.notes.append(f"{dtype}: watching the port changes what it computes")


def _not_finite(reference: dict, dtype: str) -> tuple[str, str] | None:
    """Where a reference that is not finite ceases to be so, and what a report says of it: it is no yardstick, and no
    reason to pass."""
    tensors = reference["tensors"]
    lost = [name for name in tensors if _is_judged(name, dtype) and not is_measured(tensors[name], dtype)]
    rest = f" here and in {len(lost) - 1} tensors after it" if len(lost) > 1 else " here"
    return (lost[0], f"the reference itself is not finite in {dtype}{rest}") if lost else None


def _judge_buckets(reference: dict, ours: dict, dtype: str, verdict: Verdict) -> None:
    """Verdict 4: a flip is excused only where the two best buckets were too close to tell in the dtype."""
    for module, flips in ours["facts"].get("flips", {}).items():
        name = f"buckets:{module}"
        if "shape" in flips:
            verdict.findings.append(Finding("buckets", name, f"shape {flips['shape']} differs", dtype))
        elif flips["count"]:
            slack = _slack(reference["facts"]["bucket_slack"][module], dtype)
            text = f"{flips['count']} of {flips['of']} differ"
            if not flips["largest_margin"] <= slack:
                message = (
                    f"{text}, one where the best bucket led by {flips['largest_margin']:.1e}; rounding: {slack:.1e}"
                )
                verdict.findings.append(Finding("buckets", name, message, dtype))
            else:
                why = (
                    f"all within rounding of a tie ({slack:.1e})" if math.isfinite(slack) else "R32 is not finite there"
                )
                verdict.notes.append(f"{dtype}: {name}: {text}, {why}")


def _judge_signs(reference: dict, ours: dict, dtype: str, verdict: Verdict) -> None:
    """Verdict 4 for ReLU: its input may have another sign than in R64 only where it is 0 to within rounding, which is
    what the reference's own float32 moves the inputs by. All else is compared with R64's signs on both sides."""
    moved = reference["facts"].get("relu_moved", {})
    excused = 0
    for module, flips in ours["facts"].get("relu_flips", {}).items():
        slack = SIGN_FACTOR * _slack(moved.get(module, 0.0), dtype)
        if not flips["largest_margin"] <= slack:
            text = f"{flips['count']} of {flips['of']} inputs have another sign, one of them where"
            message = f"{text} it is {flips['largest_margin']:.1e}; rounding: {slack:.1e}"
            verdict.findings.append(Finding("signs", f"relu:{module}", message, dtype))
        elif math.isfinite(slack):
            excused += flips["count"]
    if excused:
        verdict.notes.append(f"{dtype}: {excused} inputs of ReLU lie on the other side of 0, all within rounding of it")


def _slack(of_float32: float, dtype: str) -> float:
    """What rounding may turn around, from what it may in float32; infinite where R32 is not finite, which says nothing
    of float64."""
    shrunk = of_float32 * (UNIT[dtype] / UNIT["float32"])
    return shrunk if dtype == "float32" or math.isfinite(shrunk) else 0.0


def _judge_constants(errors: dict[str, float], dtype: str, verdict: Verdict) -> None:
    """What both sides compute once, in float32, from the configuration: the port's own against the reference's.

    All else is compared with the reference's constant in both, so that a unit in the last place here, where torch's own
    table differs from one processor to another, does not look like a fault there.
    """
    for name, error in errors.items():
        if not error <= CONSTANT_UNITS:
            message = f"the port's own is off by {error:.3g} units of rounding; {CONSTANT_UNITS:.3g} are allowed"
            verdict.findings.append(Finding("structure", f"parameter:{name}", message, dtype))
        elif error and dtype == "float64":
            verdict.notes.append(f"{name}: the port's own is within {error:.2g} units of rounding of the reference's")


def _is_judged(name: str, dtype: str) -> bool:
    """All but the losses after an update in float32: one number each, at the end of a path that amplifies rounding, of
    whose spread a few runs of the reference tell too little. Right ports were seen at 10 times the largest of five."""
    return dtype == "float64" or not name.startswith("loss#")


def _judge_tensor(name: str, theirs: dict, ours: dict, dtype: str, verdict: Verdict) -> None:
    """Verdicts 2 and 3 on one tensor."""
    if ours["rms"] is None or not is_measured(theirs, dtype):
        return  # said of the port's structure, or of the reference
    comparison = compare(name, theirs, ours, dtype)
    verdict.comparisons.append(comparison)
    if not comparison.informative:
        verdict.notes.append(
            f"{name}: the reference's own float32 is {float32_noise(theirs)} of the tensor; "
            "float32 carries no information there, float64 alone decides"
        )
    if not comparison.passed:
        kind = "semantics" if dtype == "float64" else "rounding"
        message = (
            f"off by {comparison.relative:.1e} of its size, {comparison.margin:.3g} times the bound; "
            f"the reference's own float32 is {float32_noise(theirs)}"
        )
        verdict.findings.append(Finding(kind, name, message, dtype))


def _judge_recomputed(reference: dict, ours: dict, dtype: str, verdict: Verdict) -> None:
    """The port's backward that computes layers again (reversible, recompute), by itself: against plain autograd of the
    same port in the same dtype, with the recorded draws and with the port's own."""
    for kind, what in (("recomputed", "recorded draws"), ("replay", "the port's own generator")):
        for name, error in ours[kind].items():
            theirs = reference["tensors"].get(name)
            if theirs is None or not is_measured(theirs, dtype):
                continue
            lost = max(theirs["noise"][dtype]) > UNINFORMATIVE * theirs["rms"]  # all noise: no scale to be relative to
            if not error <= RECOMPUTED_LIMIT and not lost:
                message = f"with {what}, computed again, it is off by {error:.1e} of plain autograd's gradient"
                verdict.findings.append(Finding(kind, name, message, dtype))


def _judge_generators(generators: dict[str, dict], verdict: Verdict) -> None:
    """Verdict 7: the port's own masks and rotations are random, at the rates that were asked for. A streamed port is
    not measured."""
    for name, message in rng_tests.faults(generators):
        verdict.findings.append(Finding("randomness", name, message))


def _judge_tokens(theirs: list[dict] | None, ours: list[dict] | None, verdict: Verdict) -> None:
    """Verdict 5: ids, padding on either side, attention mask, decoded text and, where the task uses them, offsets are
    equal, text for text."""
    refused = 0
    for index, (reference, port) in enumerate(zip(theirs or [], ours or [], strict=True)):
        if "error" in reference:
            refused += 1
            continue
        for key in reference:
            if reference[key] != port.get(key):
                place, got, wanted = _first_difference(port.get(key), reference[key])
                message = f"{key} differ{place}: {_shorten(got)}, the reference gives {_shorten(wanted)}"
                verdict.findings.append(Finding("tokenizer", f"tokenizer:{key}", f"text {index}: {message}"))
    if refused:
        verdict.notes.append(f"tokenizer: the reference cannot encode {refused} of the texts; they were not compared")


def _first_difference(ours: Any, theirs: Any) -> tuple[str, Any, Any]:
    """Of two equally long lists of lists, such as offsets, where they first differ, and the two entries there."""
    if isinstance(ours, list) and ours and isinstance(ours[0], list) and len(ours) == len(theirs):
        place = next(index for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        return f" at {place}", ours[place], theirs[place]
    return "", ours, theirs


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
