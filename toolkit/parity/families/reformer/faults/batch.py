"""Faults of Reformer's port that only some texts reach."""

from __future__ import annotations

from functools import partial

from toolkit.parity.mutants import batch
from toolkit.parity.mutants.fault import Mutant, around, built, settings


def hash_in_bfloat16(port):
    def hash_vectors(original, self, vectors, *rest):
        return original(self, vectors.astype("bfloat16").astype(vectors.dtype), *rest)

    return around(port.attention.LSHSelfAttention, "hash_vectors", hash_vectors)


def _head_at_last_of_padded(port):
    """Let the classification head read the last column of a text that has padding."""
    kept: list = []

    def body(original, self, input_ids, attention_mask=None, *rest):
        kept[:] = [attention_mask.astype("bool").all(1).reshape([-1, 1, 1])]
        return original(self, input_ids, attention_mask, *rest)

    def head(original, self, hidden_states):
        return original(self, port.paddle.where(kept[0], hidden_states, hidden_states[:, -1:]))

    in_body = around(port.modeling.ReformerModel, "forward", body)
    return in_body + around(port.modeling.ReformerClassificationHead, "forward", head)


_fault = partial(Mutant, family="reformer")

BATCH: tuple[Mutant, ...] = (
    *batch.faults(
        "",
        "reformer",
        body=lambda p: p.modeling.ReformerModel,
        embedding=lambda p: (p.modeling.ReformerEmbeddings, "word_embeddings"),
        rows="gradient:reformer.encoder.layers.3.attention.layer_norm",
        tokens="gradient:reformer.embeddings.word_embeddings.weight",
        attention="layers.0.attention.self_attention",
    ),
    _fault("hash-in-bfloat16", "vectors rounded to bfloat16 before they are hashed", "buckets", hash_in_bfloat16),
    _fault(
        "head-at-last-of-padded",
        "the classification head reads the last position of a text that has padding",
        "classifier",
        _head_at_last_of_padded,
        operation="classifier.dropout",
    ),
    _fault(
        "second-neighbour-lost",
        "local attention looks back by one chunk where it is to look back by two",
        "layers.0.attention.self_attention",
        lambda p: built(p.attention.LocalSelfAttention, lambda layer: settings(layer, num_chunks_before=1)),
        operation="adjacent:",
    ),
)
