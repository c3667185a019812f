"""Faults of a language model that goes on token by token, which a job with another head cannot show."""

from __future__ import annotations

from functools import partial

import numpy as np

from toolkit.parity.mutants.fault import Mutant, around


def _position_before(port):
    """Let a token have the position of the one before it."""
    return around(port.modeling.AxialPositionEmbeddings, "of_position", lambda plain, self, at: plain(self, at - 1))


def _keys(port, kind, change):
    """Let an attention see ``change(keys)`` in place of the keys that it keeps."""

    def attend(plain, self, *given):
        kept, self.keys = self.keys, change(self.keys)
        try:
            return plain(self, *given)
        finally:
            self.keys = kept

    return around(getattr(port.continuation, kind), "attend", attend)


def _first_chunk_forgotten(port):
    """Let local attention see nothing of the chunks before."""

    def change(keys):
        return keys * (port.paddle.arange(keys.shape[2]) >= keys.shape[2] - 8).astype(keys.dtype).reshape([1, 1, -1, 1])

    return _keys(port, "_Local", change)


def _bucket_of_the_one_before(port):
    """Let a token have the buckets of the one before it: its own are not appended."""

    def hashed(plain, self, *given):
        found = plain(self, *given).clone()
        found[..., -1] = found[..., -2]
        return found

    return around(port.continuation._LSH, "hashed", hashed)


def _own_chunk_alone(port):
    """Let a chunk of LSH attention see itself in place of those before it."""

    def seen_from(plain, self, places, total):
        found = plain(self, places, total)
        own = found[..., -self.layer.chunk_length :]
        return np.concatenate([own] * (found.shape[-1] // own.shape[-1]), -1)

    return around(port.continuation._LSH, "seen_from", seen_from)


def _rounds_apart(port):
    """Let the first chunk of a hash round see the last one of the same round: one ring for each."""

    def read(plain, self, query, order, of_round, place):
        return plain(self, query, order, 0 * of_round + np.arange(order.shape[2])[:, None], place)

    return around(port.continuation._LSH, "read", read)


def _unscaled_key(port):
    """Let a token's query serve as its key as it is."""

    def project(plain, self, hidden_states):
        query, key, value = plain(self, hidden_states)
        return query, key if hidden_states.shape[1] > 1 else query, value

    return around(port.continuation._LSH, "project", project)


def _streams_exchanged(port):
    """Exchange the residual streams where a layer begins."""
    return around(
        port.continuation._Layer,
        "__call__",
        lambda plain, self, attention, hidden, padded: plain(self, hidden, attention, padded),
    )


_fault = partial(Mutant, family="reformer", expected="decoding/logits")

DECODING: tuple[Mutant, ...] = (
    _fault("decoded-positions", "a token that follows has the position of the one before", apply=_position_before),
    _fault(
        "decoded-keys-misplaced",
        "the keys that LSH attention keeps are one place off",
        apply=lambda p: _keys(p, "_LSH", lambda keys: p.paddle.roll(keys, 1, 2)),
    ),
    _fault("decoded-local-forgets", "local attention forgets what is 8 tokens back", apply=_first_chunk_forgotten),
    _fault("decoded-bucket-missing", "the buckets of a token are not appended", apply=_bucket_of_the_one_before),
    _fault("decoded-chunk-alone", "a token does not see the chunks before its own", apply=_own_chunk_alone),
    _fault("decoded-rounds-apart", "each hash round is a ring by itself", apply=_rounds_apart),
    _fault("decoded-key-unscaled", "the key of a token is not scaled", apply=_unscaled_key),
    _fault("decoded-streams-exchanged", "the residual streams are exchanged in each layer", apply=_streams_exchanged),
)
