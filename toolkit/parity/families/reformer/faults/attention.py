"""Faults of Reformer's attention: scores, masks, chunks, hashing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants import kernels
from toolkit.parity.mutants.fault import Mutant, around, built, result, settings


def _no_scale(port):
    """Leave out 1/sqrt(D): the root of the head size that the module sees becomes 1."""
    return [(port.attention, "math", SimpleNamespace(**{**vars(math), "sqrt": lambda size: 1.0}))]


def _mask_by(port, kept: Callable):
    """Use another causal or padding rule in local attention."""
    return result(port.attention.LocalSelfAttention, "kept_positions", kept)


def _hash_round_average(port):
    return [(port.attention, "softmax_over", lambda x, axis: port.paddle.full_like(x, 1.0 / x.shape[axis]))]


def _unstable_sort(port):
    """Sort equal buckets in the opposite order of their positions."""
    sort = port.paddle.argsort

    def argsort(x, axis=-1, **options):
        return x.shape[-1] - 1 - sort(x.flip(-1), axis=axis, **options)

    return [(port.paddle, "argsort", argsort)]


def _look(port, kind, **values):
    return built(kind, lambda layer: settings(layer, **values))


def _no_self_mask(port):
    def against(place, seen, compare):
        found = port_against(place, seen, compare)
        return port.paddle.ones_like(found) if compare is port.paddle.not_equal else found

    port_against = port.attention.against
    return [(port.attention, "against", against)]


def _key_from(port, change: Callable):
    return around(port.attention.LSHSelfAttention, "as_key", change)


def _swapped_query_and_key(port):
    def forward(original, self, hidden_states, attention_mask=None):
        self._sub_layers["query"], self._sub_layers["key"] = self._sub_layers["key"], self._sub_layers["query"]
        try:
            return original(self, hidden_states, attention_mask)
        finally:
            self._sub_layers["query"], self._sub_layers["key"] = self._sub_layers["key"], self._sub_layers["query"]

    return around(port.attention.LocalSelfAttention, "forward", forward)


_fault = partial(Mutant, family="reformer")

ATTENTION: tuple[Mutant, ...] = (
    # -- attention scores
    _fault(
        "no-1/sqrt(d)", "scores not divided by the root of the head size", "self_attention", _no_scale, operation="key:"
    ),
    _fault(
        "swapped-query-key",
        "query and key projections exchanged",
        "self_attention",
        _swapped_query_and_key,
        operation="heads:",
    ),
    _fault(
        "key-epsilon",
        "epsilon of the key normalisation ten times too small",
        "self_attention",
        lambda p: [(p.attention, "KEY_NORM_EPSILON", 1e-7)],
        operation="key:",
    ),
    _fault(
        "key-unnormalised",
        "LSH keys not normalised",
        "self_attention",
        lambda p: _key_from(p, lambda original, self, qk: qk / math.sqrt(self.attention_head_size)),
        operation="adjacent:",
    ),
    _fault(
        "key-unit-length",
        "LSH keys of unit length, not unit mean square",
        "self_attention",
        lambda p: _key_from(p, lambda original, self, qk: original(self, qk) / math.sqrt(self.attention_head_size)),
        operation="adjacent:",
    ),
    _fault(
        "key-detached",
        "no gradient through LSH keys",
        "query_key",
        lambda p: _key_from(p, lambda original, self, qk: original(self, qk.detach())),
        operation="gradient:sorted:",
    ),
    # -- masks
    _fault(
        "mask-value-1e8",
        "padding masked with -1e8 for -1e9",
        "",
        lambda p: [(p.attention, "MASKED", -1e8)],
        harmless="exp(-1e8) and exp(-1e9) are both 0, and a row that is masked everywhere is uniform under either",
    ),
    _fault(
        "mask-value-1e4",
        "padding masked with -1e4, above the self mask of LSH attention",
        "self_attention",
        lambda p: [(p.attention, "MASKED", -1e4)],
        operation="masked_scores:",
    ),
    _fault(
        "mask-value-30",
        "padding masked with -30",
        "self_attention",
        lambda p: [(p.attention, "MASKED", -30.0)],
        operation="masked_scores:",
    ),
    _fault(
        "self-mask-value",
        "a position masked from itself with -20",
        "self_attention",
        lambda p: [(p.attention, "SELF_MASKED", -20.0)],
        operation="masked_scores:",
    ),
    _fault(
        "no-self-mask",
        "a position attends to itself in LSH attention",
        "self_attention",
        _no_self_mask,
        operation="masked_scores:",
    ),
    _fault(
        "padding-seen",
        "local attention ignores the padding mask",
        "self_attention",
        lambda p: _mask_by(p, lambda kept: None),
        operation="probabilities:",
    ),
    _fault(
        "padding-off-by-one",
        "the padding mask moved by one position",
        "self_attention",
        lambda p: _mask_by(p, lambda kept: None if kept is None else p.paddle.roll(kept, 1, -1)),
        operation="masked_scores:",
    ),
    _fault(
        "softmax-float32",
        "softmax in float32 under float64",
        "self_attention",
        kernels.softmax_in_float32,
        operation="probabilities:reformer.encoder.layers.0.attention.self_attention ",
    ),
    # -- chunks
    _fault(
        "local-looks-ahead",
        "local attention looks at the next chunk, not the last",
        "self_attention",
        lambda p: _look(p, p.attention.LocalSelfAttention, num_chunks_before=0, num_chunks_after=1),
        operation="adjacent:",
    ),
    _fault(
        "lsh-looks-ahead",
        "LSH attention looks at the next chunk, not the last",
        "self_attention",
        lambda p: _look(p, p.attention.LSHSelfAttention, num_chunks_before=0, num_chunks_after=1),
        operation="adjacent:",
    ),
    _fault(
        "no-look-back",
        "chunks do not see their neighbours",
        "self_attention",
        lambda p: _look(p, p.attention.ChunkedSelfAttention, num_chunks_before=0, num_chunks_after=0),
        operation="scores:",
    ),
    _fault(
        "chunk-length",
        "local chunks half as long",
        "self_attention",
        lambda p: built(
            p.attention.LocalSelfAttention, lambda layer: settings(layer, chunk_length=layer.chunk_length // 2)
        ),
        operation="adjacent:",
    ),
    # -- hashing
    _fault(
        "bucket-axes",
        "buckets numbered from the negative axes",
        "buckets",
        lambda p: around(
            p.attention.LSHSelfAttention, "hash_vectors", lambda original, self, v, r, b, m: original(self, -v, r, b, m)
        ),
    ),
    _fault(
        "padding-bucket",
        "padding hashed like text, without a bucket of its own",
        "buckets",
        lambda p: around(
            p.attention.LSHSelfAttention,
            "hash_vectors",
            lambda original, self, v, r, b, m: original(self, v, r, b, None),
        ),
    ),
    _fault(
        "unstable-sort",
        "equal buckets sorted by descending position",
        "self_attention",
        _unstable_sort,
        operation="sorted:",
    ),
    _fault(
        "rounds-averaged",
        "hash rounds averaged, not weighed by their normalisers",
        "self_attention",
        _hash_round_average,
        operation="round_weights:",
    ),
)
