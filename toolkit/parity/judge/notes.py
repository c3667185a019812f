"""What a report adds to its verdict: a sentence for each kind of :class:`toolkit.parity.job.results.Note`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.parity.job.results import Note

#: kind -> template for a note's data.
TEXTS: Mapping[str, str] = {
    # of the reference
    "reference-mask": (
        "the reference masks later tokens with the smallest number of the dtype; it was given the published model's "
        "mask, which adds -1e4: they differ where the scores reach that, and at positions that see nothing but padding"
    ),
    "reference-bias": (
        "the reference holds lm_head.bias and does not add it to its logits; it was made to, as the released model does"
    ),
    "reference-leaks": (
        "the reference computes in float32 at {places} although its model is float64; it was made to stay in float64"
    ),
    "reference-fault-unseen": "{message} ({name}); no tensor shows it",
    "reference-not-finite": "{message} ({name}); float64 was measured by its own noise alone",
    "reference-watched": "watching the reference changes {count} of its float64 tensors",
    "saturated-rows": (
        "in {count} attention rows every score is masked; there the reference's exp(x - logsumexp(x)) loses its digits "
        "and was computed as (x - max) - log(sum(exp(x - max)))"
    ),
    # of the port
    "constant": "{name}: the port's own is within {units:.2g} units of rounding of the reference's",
    "port-watched": "{dtype}: watching the port changes what it computes",
    "port-leaks": (
        "the port computes in float32 at {places} although its model is float64; it was made to stay in float64"
    ),
    "bucket-flips": "{dtype}: buckets:{module}: {count} of {of} differ, all within rounding of a tie ({slack:.1e})",
    "bucket-flips-not-finite": "{dtype}: buckets:{module}: {count} of {of} differ, R32 is not finite there",
    "sign-flips": "{dtype}: {count} inputs of ReLU lie on the other side of 0, all within rounding of it",
    "choice-flips": "{dtype}: {count} choices (argmax, top-k, sort) differ, all within rounding of a tie",
    "tokenizer-refused": "tokenizer: the reference cannot encode {count} of the texts; they were not compared",
    # of a pair
    "pair-matched": (
        "{parameters} parameters, {modules} modules' outputs and {draws} random draws of the two sides were matched; "
        "{guessed} of the parameters by a guess (toolkit parity map shows them)"
    ),
    "zero-row": (
        "row {row} of {name} is zero, as new weights have it for a padding_idx: whether the port reads that row, or "
        "gives zeros for its index as Paddle's padding_idx does, shows with trained weights alone"
    ),
    "accepted": (
        "{count} differences are accepted by {pattern} ({why}): up to {worst:.1e} of a tensor, {within:.1e} at most"
    ),
    "accepted-unused": "{pattern} is accepted ({why}), and nothing that it names differs any more",
    "accepted-unknown": "{pattern} is accepted ({why}), and nothing that is compared is called so",
    "choices-alone": (
        "the {side} chooses by size, sign or order in {places}, and what the other side does there is not given to it: "
        "a choice that rounding turns looks like a fault"
    ),
    "forward-only": (
        "only the forward in evaluation mode was compared: no gradient, no update, no dropout; a port that passes may "
        "still not train"
    ),
    "buffers-drawn": "drawn at random when a side is built, so that both begin with the reference's: {names}",
    "buffers-alone": (
        "the {side} alone holds {names}, which is no state: no checkpoint holds it, and a step leaves it as it is or "
        "computes it anew"
    ),
    "constants-rounded": (
        "float64: {count} tensors differ by up to {worst:.1e} of themselves, which is what rounding the reference's "
        "constants to float32 moves, as Paddle's kernels hold many: {constants}"
    ),
    # of float32
    "uninformative": (
        "float32 carries no information in {count} tensors (the reference's own error exceeds a tenth of them), the "
        "first of them {first}; there float64 alone decided"
    ),
    "cancelled": (
        "{count} of the tensors that float32 says nothing of: zero by cancellation, the first of them {first}; in "
        "float64, too, rounding is all there is"
    ),
    "uninformative-bfloat16": (
        "bfloat16 carries no information in {count} tensors of the free run (the reference's own error exceeds a tenth "
        "of them), the first of them {first}; there each operation on its own input decided"
    ),
    "operations-unseen": (
        "in bfloat16 the operations were not judged one by one ({why}): one that is to stay in float32 and does not "
        "may not show"
    ),
    "lost": "float32 loses {count} {kind}s, from {place} {direction}: {causes}",
    # of the gate
    "not-run": "the run does otherwise than this gate: {what}",
    "length": "{what}",
    "widened": "compared on {given} examples of the run and {added} made-up ones",
    "narrow": (
        "compared on {given} examples of the run and {added} made-up ones, too few for all that padding, the pad token "
        "and repeated tokens may do: more would take too much memory, or the reference takes one text alone"
    ),
    "one-update": (
        "the run makes one update, and so did the gate: Adam's first step has one size at any scale of the gradients: "
        "one that is off by a factor, the decay rates of the moments, and gradients that are kept from one update "
        "to the next are not seen"
    ),
    "one-micro-batch": (
        "the run accumulates {steps} micro-batches of {size}, and the gate had labels of {examples} examples, which is "
        "one: how micro-batches are weighed, and whether one is left out or given what is another's, is not seen"
    ),
    "brief": (
        "a model this large: what watching changes, and the port's own generator where layers are computed again, are "
        "not compared, and the port's plain gradients are made of each layer's input; smaller models show the rest"
    ),
    "streamed": (
        "stage by stage; the optimizer's step, evaluation mode, what watching changes, computing layers again, the "
        "port's own generator, its compiled loops by themselves, what the reference's own loader reads, and new "
        "weights are not compared: whole models show them"
    ),
    "remeasured": (
        "the reference's rounding was measured by {all_runs} runs, since by {few_runs} alone {name} was at "
        "{margin:.2g} of its bound in {dtype}"
    ),
    "not-remeasured": (
        "all that differs is within {factor:.0f} times its bound, which may be luck of the few runs by which the "
        "reference's rounding was measured; a gate that can run the reference itself measures by more"
    ),
}


def text(note: Note) -> str:
    """A note as a sentence."""
    return TEXTS[note.kind].format(**note.data)


def as_content(note: Note) -> dict[str, Any]:
    """A note's content in ``parity.json``."""
    return {"kind": note.kind, "data": note.data, "text": text(note)}
