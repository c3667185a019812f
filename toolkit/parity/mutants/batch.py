"""Faults that only some texts reach: padding, the pad token, repeated tokens, rows beyond a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toolkit.parity.mutants.fault import Modules, Mutant, around, built

#: Pad token of the trials.
PAD = 0


def _whole_blocks_alone(port):
    """Leave the rows beyond the last whole block out of column sums."""
    sums, block = port.ops._column_sums, port.ops.ROWS

    def whole(matrix):
        rows = matrix.shape[0]
        return sums(matrix[: rows // block * block] if rows > block else matrix)

    return [(port.ops, "_column_sums", whole)]


def _no_gradient_where(port: Modules, chosen: Callable, owner: type, table: str):
    """Let the embedding ``table`` of a class send no gradient back from the positions that ``chosen`` names."""

    def change(layer) -> None:
        lookup = getattr(layer, table)
        embed = lookup.forward

        def forward(tokens):
            embedded = embed(tokens)
            return port.paddle.where(chosen(tokens).unsqueeze(-1), embedded.detach(), embedded)

        lookup.forward = forward

    return built(owner, change)


def _met_before(tokens):
    """Return where the text has had the same token before."""
    same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
    return same.astype("int64").tril(-1).sum(-1) > 0


def mask_by(body: type, rule: Callable):
    """Make the body's attention mask by another rule."""

    def forward(original, self, input_ids, attention_mask=None, *rest, **options):
        return original(self, input_ids, rule(input_ids, attention_mask), *rest, **options)

    return around(body, "forward", forward)


def faults(
    prefix: str, family: str, body: Callable, embedding: Callable, *, rows: str, tokens: str, attention: str
) -> tuple[Mutant, ...]:
    """Return those that every family has.

    Args:
        body: takes the modules, gives the class of the model without its head.
        embedding: takes the modules, gives the class that looks tokens up, and the attribute that it has for that.
        rows: the first gradient that shows rows left out.
    """

    def fault(name: str, what: str, expected: str, apply: Callable, operation: str = "") -> Mutant:
        return Mutant(prefix + name, what, expected, apply, family, operation=operation)

    masked = partial(fault, expected=attention, operation="masked_scores:")
    return (
        fault(
            "rows-beyond-block",
            "gradients of biases and gains without the rows beyond the last whole block",
            rows,
            _whole_blocks_alone,
            rows,
        ),
        fault(
            "pad-token-frozen",
            "the pad token's embedding gets no gradient, as with padding_idx",
            tokens,
            lambda p: _no_gradient_where(p, lambda tokens: tokens == PAD, *embedding(p)),
        ),
        fault(
            "repeats-lost",
            "the gradient of a token that a text repeats overwritten, not added up",
            tokens,
            lambda p: _no_gradient_where(p, _met_before, *embedding(p)),
        ),
        masked(
            "mask-from-tokens",
            "all pad tokens and nothing else taken for padding",
            apply=lambda p: mask_by(body(p), lambda tokens, mask: (tokens != PAD).astype(mask.dtype)),
        ),
        masked(
            "pad-token-masked",
            "a pad token inside a text masked like padding",
            apply=lambda p: mask_by(body(p), lambda tokens, mask: mask * (tokens != PAD).astype(mask.dtype)),
        ),
    )
