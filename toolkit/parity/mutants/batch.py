"""Faults that only some texts reach: padding, the pad token, repeated tokens, rows beyond a block, ignored texts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from toolkit.parity.mutants.fault import Mutant, around, built, settings

#: Pad token of both families' trials.
PAD = 0


def _ops() -> SimpleNamespace:
    import paddle

    from models.operations import losses, ops

    return SimpleNamespace(paddle=paddle, ops=ops, losses=losses)


def _reformer() -> SimpleNamespace:
    from models.reformer import attention, modeling

    return SimpleNamespace(
        **vars(_ops()),
        modeling=modeling,
        body=modeling.ReformerModel,
        embeddings=modeling.ReformerEmbeddings,
        tokens="word_embeddings",
        local=attention.LocalSelfAttention,
        lsh=attention.LSHSelfAttention,
    )


def _ctrl() -> SimpleNamespace:
    from models.ctrl import modeling

    return SimpleNamespace(
        **vars(_ops()), modeling=modeling, body=modeling.CTRLModel, embeddings=modeling.CTRLModel, tokens="w"
    )


def _whole_blocks_alone(port):
    """Leave the rows beyond the last whole block out of column sums."""
    sums, block = port.ops._column_sums, port.ops.ROWS

    def whole(matrix):
        rows = matrix.shape[0]
        return sums(matrix[: rows // block * block] if rows > block else matrix)

    return [(port.ops, "_column_sums", whole)]


def _no_gradient_where(port, chosen: Callable):
    """Let embeddings send no gradient back from the positions that ``chosen`` names."""

    def change(model) -> None:
        table = getattr(model, port.tokens)
        embed = table.forward

        def forward(tokens):
            embedded = embed(tokens)
            return port.paddle.where(chosen(tokens).unsqueeze(-1), embedded.detach(), embedded)

        table.forward = forward

    return built(port.embeddings, change)


def _pad_token(tokens):
    return tokens == PAD


def _met_before(tokens):
    """Return where the text has had the same token before."""
    same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
    return same.astype("int64").tril(-1).sum(-1) > 0


def _mask_by(port, rule: Callable):
    """Make the body's attention mask by another rule."""

    def forward(original, self, input_ids, attention_mask=None, *rest, **options):
        return original(self, input_ids, rule(input_ids, attention_mask), *rest, **options)

    return around(port.body, "forward", forward)


def _by_tokens(tokens, mask):
    return (tokens != PAD).astype(mask.dtype)


def _by_both(tokens, mask):
    return mask * (tokens != PAD).astype(mask.dtype)


def _by_length(port):
    def rule(tokens, mask):
        kept = port.paddle.arange(mask.shape[1]).unsqueeze(0) < mask.sum(1, keepdim=True)
        return kept.astype(mask.dtype)

    return rule


def _hash_in_bfloat16(port):
    def hash_vectors(original, self, vectors, *rest):
        return original(self, vectors.astype("bfloat16").astype(vectors.dtype), *rest)

    return around(port.lsh, "hash_vectors", hash_vectors)


def _head_at_last_of_padded(port):
    """Let the classification head read the last column of a text that has padding."""
    kept: list = []

    def body(original, self, input_ids, attention_mask=None, *rest):
        kept[:] = [attention_mask.astype("bool").all(1).reshape([-1, 1, 1])]
        return original(self, input_ids, attention_mask, *rest)

    def head(original, self, hidden_states):
        return original(self, port.paddle.where(kept[0], hidden_states, hidden_states[:, -1:]))

    return around(port.body, "forward", body) + around(port.modeling.ReformerClassificationHead, "forward", head)


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


REFORMER_BATCH: tuple[Mutant, ...] = (
    Mutant(
        "rows-beyond-block",
        "gradients of biases and gains without the rows beyond the last whole block",
        "gradient:reformer.encoder.layers.3.attention.layer_norm",
        _whole_blocks_alone,
        _reformer,
        operation="gradient:reformer.encoder.layers.3.attention.layer_norm",
    ),
    Mutant(
        "pad-token-frozen",
        "the pad token's embedding gets no gradient, as with padding_idx",
        "gradient:reformer.embeddings.word_embeddings.weight",
        lambda p: _no_gradient_where(p, _pad_token),
        _reformer,
    ),
    Mutant(
        "repeats-lost",
        "the gradient of a token that a text repeats overwritten, not added up",
        "gradient:reformer.embeddings.word_embeddings.weight",
        lambda p: _no_gradient_where(p, _met_before),
        _reformer,
    ),
    Mutant(
        "mask-from-tokens",
        "all pad tokens and nothing else taken for padding",
        "layers.0.attention.self_attention",
        lambda p: _mask_by(p, _by_tokens),
        _reformer,
        operation="masked_scores:",
    ),
    Mutant(
        "pad-token-masked",
        "a pad token inside a text masked like padding",
        "layers.0.attention.self_attention",
        lambda p: _mask_by(p, _by_both),
        _reformer,
        operation="masked_scores:",
    ),
    Mutant(
        "hash-in-bfloat16",
        "vectors rounded to bfloat16 before they are hashed",
        "buckets",
        _hash_in_bfloat16,
        _reformer,
    ),
    Mutant(
        "head-at-last-of-padded",
        "the classification head reads the last position of a text that has padding",
        "classifier",
        _head_at_last_of_padded,
        _reformer,
        operation="classifier.dropout",
    ),
    Mutant(
        "second-neighbour-lost",
        "local attention looks back by one chunk where it is to look back by two",
        "layers.0.attention.self_attention",
        lambda p: built(p.local, lambda layer: settings(layer, num_chunks_before=1)),
        _reformer,
        operation="adjacent:",
    ),
)

CTRL_BATCH: tuple[Mutant, ...] = (
    Mutant(
        "ctrl-rows-beyond-block",
        "gradients of biases and gains without the rows beyond the last whole block",
        "gradient:lm_head.bias",
        _whole_blocks_alone,
        _ctrl,
        operation="gradient:lm_head.bias",
    ),
    Mutant(
        "ctrl-pad-token-frozen",
        "the pad token's embedding gets no gradient, as with padding_idx",
        "gradient:transformer.w.weight",
        lambda p: _no_gradient_where(p, _pad_token),
        _ctrl,
    ),
    Mutant(
        "ctrl-repeats-lost",
        "the gradient of a token that a text repeats overwritten, not added up",
        "gradient:transformer.w.weight",
        lambda p: _no_gradient_where(p, _met_before),
        _ctrl,
    ),
    Mutant(
        "ctrl-mask-from-tokens",
        "all pad tokens and nothing else taken for padding",
        "h.0.multi_head_attention",
        lambda p: _mask_by(p, _by_tokens),
        _ctrl,
        operation="masked_scores:",
    ),
    Mutant(
        "ctrl-pad-token-masked",
        "a pad token inside a text masked like padding",
        "h.0.multi_head_attention",
        lambda p: _mask_by(p, _by_both),
        _ctrl,
        operation="masked_scores:",
    ),
    Mutant(
        "ctrl-mask-by-length",
        "as many tokens kept from the left as the mask keeps anywhere",
        "h.0.multi_head_attention",
        lambda p: _mask_by(p, _by_length(p)),
        _ctrl,
        operation="masked_scores:",
    ),
    Mutant(
        "ctrl-ignored-text-counts",
        "the labels of a text of which all are ignored count in the mean",
        "loss",
        lambda p: _with_counts(p, _ignored_texts_count),
        _ctrl,
        operation="loss",
    ),
    Mutant(
        "ctrl-loss-of-texts",
        "the mean of the texts' means, whatever their length",
        "loss",
        lambda p: _with_counts(p, _mean_of_texts),
        _ctrl,
        operation="loss",
    ),
)
