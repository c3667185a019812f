"""The notes of a report in addition to its verdict: a sentence for each :class:`toolkit.parity.exchange.results.Note`.

A note is a fact that readers of the report need and that does not stop the port.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.parity.exchange.results import Note

#: Kind of a note -> template of its sentence, which ``str.format`` fills with the note's data.
TEXTS: Mapping[str, str] = {
    # notes on the reference
    "reference-mask": (
        "the reference masks later tokens with the smallest number of the dtype; it was given the published model's "
        "mask, which adds -1e4. The two differ where scores reach -1e4, and at positions that see only padding"
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
    # notes on a pair's training
    "trained": "{steps} steps of each side by itself: the loss goes from {first:.5g} to {last:.5g}; {margins}",
    "trained-with-differences": (
        "{steps} steps of each side by itself: the loss goes from {first:.5g} to {last:.5g}; the two part in "
        "step {step}, which the accepted differences may explain"
    ),
    "not-trained": "the two sides were not trained ({steps} steps): a step must agree first",
    # notes on the port
    "constant": "{name}: the port's own is within {units:.2g} units of rounding of the reference's",
    "port-watched": "{dtype}: the step as training makes it, unwatched, differs in its last bits; it was judged, too",
    "port-leaks": (
        "the port computes in float32 at {places} although its model is float64; it was made to stay in float64"
    ),
    "limited-loss": (
        "at {places} some scores lie more than 64 below the largest. Paddle's CPU kernels count them as 64 below it, "
        "so a run reports a smaller loss than the reference; gradients are not affected. The port was compared without "
        "this limit"
    ),
    "bucket-flips": "{dtype}: buckets:{module}: {count} of {of} differ, all within rounding of a tie ({slack:.1e})",
    "bucket-flips-not-finite": "{dtype}: buckets:{module}: {count} of {of} differ, R32 is not finite there",
    "sign-flips": "{dtype}: {count} inputs of ReLU lie on the other side of 0, all within rounding of it",
    "choice-flips": "{dtype}: {count} choices (argmax, top-k, sort) differ, all within rounding of a tie",
    "tokenizer-refused": "tokenizer: the reference cannot encode {count} of the texts; they were not compared",
    # notes on a pair
    "pair-matched": (
        "{parameters} parameters, {modules} modules' outputs and {draws} random draws of the two sides were matched; "
        "{guessed} of the parameters by a guess (toolkit parity map shows them)"
    ),
    "zero-row": (
        "row {row} of {name} is zero, as in new weights with a padding_idx. Only trained weights show whether the port "
        "reads that row, or gives zeros for its index as Paddle's padding_idx does"
    ),
    "shifted": (
        "the port adds a number to {names}, as the map says; weight decay then pulls them toward another number than "
        "in the reference, and the gate updated the reference's own numbers"
    ),
    "other-initial-value": (
        "{name} is {theirs} when the reference is built, and {ours} in the port; if the port's loader adds the "
        "difference, write below parameters in the map: {map}"
    ),
    "other-shape": (
        "{name} of the reference is {theirs} in torch's layout, and {port} of the port is {ours}; if a loader reshapes "
        "it, write below parameters in the map: {name}: {port}, or {name}: {port}.T"
    ),
    "accepted": (
        "{count} differences are accepted by {pattern} ({why}): up to {worst:.1e} of a tensor, {within:.1e} at most"
    ),
    "accepted-unused": "{pattern} is accepted ({why}), but what it names no longer differs",
    "accepted-unknown": "{pattern} is accepted ({why}), but nothing that is compared has such a name",
    "outputs-set-aside": (
        "not compared, because their shape, order or content differs: the outputs of {names} ({count} in all); "
        "everything that is computed from them agrees, in value and in gradient"
    ),
    "choices-alone": (
        "the {side} chooses by size, sign or order in {places}, and does not get the other side's choices there: a "
        "choice that rounding flips looks like a fault"
    ),
    "masks-idle": (
        "the {side} makes a mask at {places} that excludes nothing on this batch, so a fault in its bound does not "
        "show; use longer texts or a smaller bound"
    ),
    "limits-idle": (
        "the {side} limits whole numbers at {places}, and no number of this batch is changed, so a fault in the limit "
        "does not show; use longer texts or a smaller limit"
    ),
    "choices-idle": (
        "the {side} chooses between two results by the comparison at {places}, and takes the same one everywhere on "
        "this batch, so a fault in the other one does not show; use longer texts or a smaller bound"
    ),
    "forward-only": (
        "only the forward in evaluation mode was compared: no gradient, no update, no dropout; a port that passes may "
        "still not train"
    ),
    "buffers-drawn": "drawn at random when a side is built, so that both begin with the reference's: {names}",
    "buffers-alone": (
        "only the {side} holds {names}, which is no state: no checkpoint holds it, and a step leaves it as it is or "
        "computes it again"
    ),
    "constants-rounded": (
        "float64: {count} tensors differ by up to {worst:.1e} of themselves, which is what rounding the reference's "
        "constants to float32 moves; Paddle's kernels hold many in float32: {constants}"
    ),
    # notes on a port in another framework
    "outputs-left-out": "the port gave {given} of the reference's {of} tensors; not compared: {what}",
    "outputs-choices": (
        "the port makes its own choices (signs under ReLU, argmax, top-k): one that rounding flips looks like a fault "
        "in float32"
    ),
    "outputs-rounded": "the port gave float32 alone: a fault smaller than the reference's own rounding is not seen",
    # notes on float32
    "uninformative": (
        "float32 carries no information in {count} tensors (the reference's own error exceeds a tenth of them), the "
        "first of them {first}; there float64 alone decided"
    ),
    "cancelled": (
        "{count} of the tensors in which float32 carries no information are zero by cancellation, the first of them "
        "{first}; in float64 too they are nothing but rounding"
    ),
    "uninformative-bfloat16": (
        "bfloat16 carries no information in {count} tensors of the free run (the reference's own error exceeds a tenth "
        "of them), the first of them {first}; there each operation on its own input decided"
    ),
    "operations-unseen": (
        "in bfloat16 the operations were not judged one by one ({why}): an operation that wrongly leaves float32 may "
        "not show"
    ),
    "lost": "float32 loses {count} {kind}s, from {place} {direction}: {causes}",
    # notes on the gate
    "not-run": "the run differs from this gate: {what}",
    "length": "{what}",
    "widened": "compared on {given} examples of the run and {added} made-up ones",
    "narrow": (
        "compared on {given} examples of the run and {added} made-up ones. These are too few to show all effects of "
        "padding, the pad token and repeated tokens: more would take too much memory, or the reference takes one text "
        "at a time"
    ),
    "one-update": (
        "the run makes one update, and so did the gate. The size of a first step, but SGD's, does not depend on the "
        "scale of the gradients, so the gate does not see a wrong factor, wrong decay rates of the moments, or "
        "gradients kept from one update to the next"
    ),
    "one-micro-batch": (
        "the run accumulates {steps} micro-batches of {size}, but the gate had labels of {examples} examples, which is "
        "one micro-batch. It does not see how micro-batches are weighted, or whether one is left out or gets another's "
        "inputs"
    ),
    "brief": (
        "a model this large: the gate does not compare the step without hooks, or the port's own generator where "
        "layers are recomputed. It computes the port's plain gradients from each layer's input. Smaller models show "
        "the rest"
    ),
    "brief-pair": (
        "a model this large: the gate does not compare the step without hooks, or the updates by an optimizer of its "
        "own. Smaller models show both"
    ),
    "sketched": (
        "recorded --small: of a tensor of {least:,} elements and more, {sums:,} sums of its elements with random signs "
        "are compared. They tell the RMS of an error to 1%. A single wrong element is seen if it is larger than the "
        "rounding of a sum"
    ),
    "streamed": (
        "stage by stage: the gate does not compare the optimizer's step, evaluation mode, the step without hooks, "
        "recomputed layers, the port's own generator, its compiled loops by themselves, what the reference's own "
        "loader reads, and new weights. Whole models show them"
    ),
    "remeasured": (
        "the reference's rounding was measured by {all_runs} runs, since by {few_runs} alone {name} was at "
        "{margin:.2g} of its bound in {dtype}"
    ),
    "not-remeasured": (
        "every difference is within {factor:.0f} times its bound. That may be chance, since few runs measured the "
        "reference's rounding; a gate that can run the reference makes more runs"
    ),
}


#: Kinds of notes that may explain a difference. The report omits them if nothing differs.
HINTS = ("other-initial-value", "other-shape")


def text(note: Note) -> str:
    """Return the sentence of a note, with its data filled in."""
    return TEXTS[note.kind].format(**note.data)


def as_content(note: Note) -> dict[str, Any]:
    """Return a note as the content of ``parity.json``: its kind, data and sentence."""
    return {"kind": note.kind, "data": note.data, "text": text(note)}
