"""Faults of CTRL's port in evaluation mode."""

from __future__ import annotations

from functools import partial

from toolkit.parity.mutants.evaluation import drops
from toolkit.parity.mutants.fault import Mutant, around


def _positions_from_zero(port):
    """Let tokens that follow a cache begin at position 0 again."""

    def embed(plain, self, input_ids, position_ids, token_type_ids=None):
        return plain(self, input_ids, position_ids - position_ids.min(), token_type_ids)

    return around(port.modeling.CTRLModel, "embed", embed)


def _cache(port, change):
    """Replace the cached keys and values by ``change(past)`` where the layers compute a token."""

    def forward(plain, self, hidden_states, bias, past=None):
        return plain(self, hidden_states, bias, None if past is None else change(past))

    return around(port.layers.MultiHeadAttention, "forward", forward)


def _cache_of_continuation(port, change):
    """Do the same where a token is computed without the layers."""
    return around(port.continuation._Layer, "attend", lambda plain, *given: plain(*given[:-1], change(given[-1])))


def _mask_of_the_first(port):
    """Leave out the attention mask where there is a past."""
    plain = port.modeling.attention_bias

    def attention_bias(past, length, attention_mask, dtype):
        return plain(past, length, None if past else attention_mask, dtype)

    return [(port.modeling, "attention_bias", attention_bias)]


def _scores_of_others(port):
    """Give a single text's tokens the scores of other ones."""

    def scores(plain, self, x):
        found = plain(self, x)
        return port.paddle.roll(found, found.shape[1] // 2, 1) if x.shape[0] == 1 else found

    return around(port.continuation._Scores, "__call__", scores)


_fault = partial(Mutant, family="ctrl")

EVALUATION: tuple[Mutant, ...] = (
    _fault("ctrl-eval-drops", "dropout in evaluation, too", "evaluation/dropout:", lambda p: drops(p)),
    _fault(
        "ctrl-cached-positions", "tokens after a cache begin at position 0", "decoding/logits", _positions_from_zero
    ),
    _fault(
        "ctrl-cache-reversed",
        "keys of the past come in the opposite order",
        "decoding/logits",
        lambda p: _cache_of_continuation(p, lambda past: (past[0].flip(2), past[1])),
    ),
    _fault(
        "ctrl-cache-forgets",
        "the first token of the past is forgotten",
        "decoding/logits",
        lambda p: _cache(p, lambda past: (p.paddle.concat([0 * past[0][:, :, :1], past[0][:, :, 1:]], 2), past[1])),
    ),
    _fault("ctrl-cache-unmasked", "padding in the past is attended to", "decoding/logits", _mask_of_the_first),
    _fault(
        "ctrl-one-text-scores",
        "tokens after a single text have the scores of others",
        "decoding/logits",
        _scores_of_others,
    ),
)
