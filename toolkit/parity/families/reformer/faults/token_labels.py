"""Faults of the head that labels tokens, which a job with another head cannot show."""

from __future__ import annotations

from functools import partial

from toolkit.parity.mutants.batch import mask_by
from toolkit.parity.mutants.fault import Mutant, around, built, settings


def _labels(port, change):
    """Let the head be given ``change(labels, attention_mask)`` for its labels."""

    def forward(original, self, input_ids, attention_mask=None, labels=None):
        given = None if labels is None else change(labels, attention_mask)
        return original(self, input_ids, attention_mask, given)

    return around(port.modeling.ReformerForTokenClassification, "forward", forward)


def _over_all(port):
    """Divide the sum of the losses by the number of tokens, ignored ones too."""
    plain = port.losses.cross_entropy

    def cross_entropy(logits, labels, ignored=port.losses.IGNORED_LABEL):
        return plain(logits, labels, ignored) * (labels != ignored).astype(logits.dtype).mean()

    return [(port.losses, "cross_entropy", cross_entropy)]


def _ignored_are_outside(labels, mask):
    """Take ignored labels for the first one."""
    return labels * (labels >= 0).astype(labels.dtype)


def _padding_is_outside(labels, mask):
    """Take the labels of padding for the first one."""
    return labels * (mask != 0).astype(labels.dtype)


_fault = partial(Mutant, family="reformer")
_loss = partial(_fault, expected="loss", operation="loss")

TOKEN_LABELS: tuple[Mutant, ...] = (
    _loss(
        "token-labels-shifted",
        "each token is to have the next one's label, as in a language model",
        apply=lambda p: _labels(p, lambda labels, mask: p.losses.next_tokens(labels)),
    ),
    _loss("token-ignored-counted", "the mean counts ignored tokens", apply=_over_all),
    _loss(
        "token-ignored-outside",
        "ignored tokens are taken for the first label",
        apply=lambda p: _labels(p, _ignored_are_outside),
    ),
    _loss(
        "token-padding-outside",
        "padding is taken for the first label",
        apply=lambda p: _labels(p, _padding_is_outside),
    ),
    _fault(
        "token-padding-attended",
        "padding is attended to",
        "layers.0.attention",
        lambda p: mask_by(p.modeling.ReformerForTokenClassification, lambda tokens, mask: p.paddle.ones_like(tokens)),
        operation="masked_scores:",
    ),
    _fault(
        "token-dropout-missing",
        "no dropout before the labels",
        "dropout",
        lambda p: built(p.modeling.ReformerForTokenClassification, lambda model: settings(model.dropout, p=0.0)),
    ),
    _fault(
        "token-accumulated-by-text",
        "micro-batches count by their texts, not by their labels",
        "updated:",
        lambda p: [(p.trainer.Finetuner, "num_loss_terms", lambda self, batch: len(batch["labels"]))],
    ),
)
