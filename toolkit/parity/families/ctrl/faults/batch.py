"""Faults of CTRL's port that only some texts reach."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toolkit.parity.mutants import batch
from toolkit.parity.mutants.fault import Modules, Mutant


def _body(port: Modules) -> type:
    return port.modeling.CTRLModel


def _by_length(port):
    def rule(tokens, mask):
        kept = port.paddle.arange(mask.shape[1]).unsqueeze(0) < mask.sum(1, keepdim=True)
        return kept.astype(mask.dtype)

    return rule


def _with_counts(port, mean: Callable):
    """Make the loss ``mean`` of the losses (B, T) and of where labels count."""

    def next_token_loss(logits, labels):
        targets = port.losses.next_tokens(labels)
        counted = targets != port.losses.IGNORED_LABEL
        chosen = port.paddle.where(counted, targets, port.paddle.zeros_like(targets))
        losses = port.ops.cross_entropy(logits.reshape([-1, logits.shape[-1]]), chosen.flatten())
        return mean(losses.reshape(targets.shape) * counted.astype(losses.dtype), counted.astype(losses.dtype))

    return [(port.losses, "next_token_loss", next_token_loss)]


def _ignored_texts_count(losses, counted):
    empty = (counted.sum(1) == 0).astype(counted.dtype).sum() * counted.shape[1]
    return losses.sum() / (counted.sum() + empty)


def _mean_of_texts(losses, counted):
    of_text = counted.sum(1)
    return (losses.sum(1) / of_text.clip(min=1)).sum() / (of_text > 0).astype(of_text.dtype).sum()


_fault = partial(Mutant, family="ctrl")

BATCH: tuple[Mutant, ...] = (
    *batch.faults(
        "ctrl-",
        "ctrl",
        body=_body,
        embedding=lambda p: (_body(p), "w"),
        rows="gradient:lm_head.bias",
        tokens="gradient:transformer.w.weight",
        attention="h.0.multi_head_attention",
    ),
    _fault(
        "ctrl-mask-by-length",
        "as many tokens kept from the left as the mask keeps anywhere",
        "h.0.multi_head_attention",
        lambda p: batch.mask_by(_body(p), _by_length(p)),
        operation="masked_scores:",
    ),
    _fault(
        "ctrl-ignored-text-counts",
        "the labels of a text of which all are ignored count in the mean",
        "loss",
        lambda p: _with_counts(p, _ignored_texts_count),
        operation="loss",
    ),
    _fault(
        "ctrl-loss-of-texts",
        "the mean of the texts' means, whatever their length",
        "loss",
        lambda p: _with_counts(p, _mean_of_texts),
        operation="loss",
    ),
)
