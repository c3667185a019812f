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
_buckets = partial(_fault, expected="buckets")
_scores = partial(_fault, expected="self_attention")
_adjacent, _mask = partial(_scores, operation="adjacent:"), partial(_scores, operation="masked_scores:")

ATTENTION: tuple[Mutant, ...] = (
    # -- attention scores
    _scores("no-1/sqrt(d)", "scores not divided by the root of the head size", apply=_no_scale, operation="key:"),
    _scores(
        "swapped-query-key", "query and key projections exchanged", apply=_swapped_query_and_key, operation="heads:"
    ),
    _scores(
        "key-epsilon",
        "epsilon of the key normalisation ten times too small",
        apply=lambda p: [(p.attention, "KEY_NORM_EPSILON", 1e-7)],
        operation="key:",
    ),
    _adjacent(
        "key-unnormalised",
        "LSH keys not normalised",
        apply=lambda p: _key_from(p, lambda original, self, qk: qk / math.sqrt(self.attention_head_size)),
    ),
    _adjacent(
        "key-unit-length",
        "LSH keys of unit length, not unit mean square",
        apply=lambda p: _key_from(
            p, lambda original, self, qk: original(self, qk) / math.sqrt(self.attention_head_size)
        ),
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
    _mask(
        "mask-value-1e4",
        "padding masked with -1e4, above the self mask of LSH attention",
        apply=lambda p: [(p.attention, "MASKED", -1e4)],
    ),
    _mask("mask-value-30", "padding masked with -30", apply=lambda p: [(p.attention, "MASKED", -30.0)]),
    _mask(
        "self-mask-value",
        "a position masked from itself with -20",
        apply=lambda p: [(p.attention, "SELF_MASKED", -20.0)],
    ),
    _mask("no-self-mask", "a position attends to itself in LSH attention", apply=_no_self_mask),
    _scores(
        "padding-seen",
        "local attention ignores the padding mask",
        apply=lambda p: _mask_by(p, lambda kept: None),
        operation="probabilities:",
    ),
    _mask(
        "padding-off-by-one",
        "the padding mask moved by one position",
        apply=lambda p: _mask_by(p, lambda kept: None if kept is None else p.paddle.roll(kept, 1, -1)),
    ),
    _scores(
        "softmax-float32",
        "softmax in float32 under float64",
        apply=kernels.softmax_in_float32,
        operation="probabilities:reformer.encoder.layers.0.attention.self_attention ",
    ),
    # -- chunks
    _adjacent(
        "local-looks-ahead",
        "local attention looks at the next chunk, not the last",
        apply=lambda p: _look(p, p.attention.LocalSelfAttention, num_chunks_before=0, num_chunks_after=1),
    ),
    _adjacent(
        "lsh-looks-ahead",
        "LSH attention looks at the next chunk, not the last",
        apply=lambda p: _look(p, p.attention.LSHSelfAttention, num_chunks_before=0, num_chunks_after=1),
    ),
    _scores(
        "no-look-back",
        "chunks do not see their neighbours",
        apply=lambda p: _look(p, p.attention.ChunkedSelfAttention, num_chunks_before=0, num_chunks_after=0),
        operation="scores:",
    ),
    _adjacent(
        "chunk-length",
        "local chunks half as long",
        apply=lambda p: built(
            p.attention.LocalSelfAttention, lambda layer: settings(layer, chunk_length=layer.chunk_length // 2)
        ),
    ),
    # -- hashing
    _buckets(
        "bucket-axes",
        "buckets numbered from the negative axes",
        apply=lambda p: around(
            p.attention.LSHSelfAttention, "hash_vectors", lambda original, self, v, r, b, m: original(self, -v, r, b, m)
        ),
    ),
    _buckets(
        "padding-bucket",
        "padding hashed like text, without a bucket of its own",
        apply=lambda p: around(
            p.attention.LSHSelfAttention,
            "hash_vectors",
            lambda original, self, v, r, b, m: original(self, v, r, b, None),
        ),
    ),
    _scores("unstable-sort", "equal buckets sorted by descending position", apply=_unstable_sort, operation="sorted:"),
    _scores(
        "rounds-averaged",
        "hash rounds averaged, not weighed by their normalisers",
        apply=_hash_round_average,
        operation="round_weights:",
    ),
)
