"""Faults of a port in evaluation mode, which its training step does not show."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants.fault import Mutant, around


def _reformer() -> SimpleNamespace:
    import paddle

    from models.operations import randomness
    from models.reformer import attention, lengths, modeling, reversible

    return SimpleNamespace(
        paddle=paddle,
        randomness=randomness,
        modeling=modeling,
        attention=attention,
        lengths=lengths,
        reversible=reversible,
    )


def _ctrl() -> SimpleNamespace:
    import paddle

    from models.ctrl import continuation, layers, modeling
    from models.operations import randomness

    return SimpleNamespace(
        paddle=paddle, randomness=randomness, modeling=modeling, layers=layers, continuation=continuation
    )


def _drops(port):
    """Drop in evaluation, too."""
    plain = port.randomness.dropout

    def dropout(x, p, training, mask_shape=None):
        return plain(x, p, True, mask_shape)

    places = [getattr(port, name) for name in ("randomness", "modeling", "attention") if hasattr(port, name)]
    return [(place, "dropout", dropout) for place in places if hasattr(place, "dropout")]


def _by_columns(port):
    """Read the axial table column by column in evaluation."""

    def forward(plain, self, position_ids):
        if self.training:
            return plain(self, position_ids)
        rows, columns = self.axial_pos_shape
        return plain(self, position_ids % rows * columns + position_ids // rows)

    return around(port.modeling.AxialPositionEmbeddings, "forward", forward)


def _rows_from_the_end(port):
    """Let a text shorter than the table take the table's last positions."""

    def forward(plain, self, position_ids):
        rows, columns = self.axial_pos_shape
        return plain(self, position_ids + (rows * columns - position_ids.shape[1]))

    return around(port.modeling.AxialPositionEmbeddings, "forward", forward)


def _padding_seen(port):
    """Let the padding of a short text be attended to."""
    plain = port.modeling.F.pad

    def forward(original, self, input_ids, attention_mask=None, read=None):
        if self.training or attention_mask is None:
            return original(self, input_ids, attention_mask, read)
        port.modeling.F.pad = lambda x, pad, **options: plain(x, pad, **{"value": 1, **options})  # ids have their own
        try:
            return original(self, input_ids, attention_mask, read)
        finally:
            port.modeling.F.pad = plain

    return around(port.modeling.ReformerModel, "forward", forward)


def _norm_skipped(port):
    """Leave out the last norm's gain in evaluation."""

    def forward(plain, self, *given):
        if self.training:
            return plain(self, *given)
        gain = self.layer_norm.weight
        held = gain.numpy()
        gain.set_value(0 * held + 1)
        try:
            return plain(self, *given)
        finally:
            gain.set_value(held)

    return around(port.modeling.ReformerEncoder, "forward", forward)


def _all_padding_left_out(port):
    """End a text with its last chunk: the first chunk sees that instead of padding."""

    def read_alike(config, length, whole):
        return min(whole, port.lengths.evaluated(config, length))

    return [(port.lengths, "read_alike", read_alike)]


def _attends_to_what_is_read(port):
    """Where the head reads only the first position, let that see no other in the last layer."""

    def forward(plain, self, hidden_states, attention_mask=None, buckets=None, read=None):
        if read is None:
            return plain(self, hidden_states, attention_mask, buckets)
        return plain(self, hidden_states[:, :read], attention_mask[:, :read])

    return around(port.modeling.ReformerAttention, "forward", forward)


def _streams_of_the_last(port):
    """Where the head reads only the first position, let the streams go on with their last one."""

    def first(plain, self, count):
        return type(self)(self.value[:, -count:], self.rest[:, -count:])

    return around(port.reversible.PairStream, "first", first)


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


def _halves_exchanged(port):
    """Exchange the halves of a single text's scores, which are computed side by side."""

    def scores(plain, self, x):
        found = plain(self, x)
        return port.paddle.roll(found, found.shape[1] // 2, 1) if x.shape[0] == 1 else found

    return around(port.continuation._Scores, "__call__", scores)


_of_reformer = partial(Mutant, port=_reformer)
_of_ctrl = partial(Mutant, port=_ctrl)

REFORMER_EVALUATION: tuple[Mutant, ...] = (
    _of_reformer("eval-drops", "dropout in evaluation, too", "evaluation/dropout:", _drops),
    _of_reformer(
        "eval-axial-by-columns",
        "positions are read column by column in evaluation",
        "evaluation/output:reformer.embeddings.position_embeddings",
        _by_columns,
    ),
    _of_reformer(
        "eval-short-last-positions",
        "short texts take the last positions of the table",
        "shorter/output:reformer.embeddings.position_embeddings",
        _rows_from_the_end,
    ),
    _of_reformer(
        "eval-filling-attended",
        "what short texts are filled up with is attended to",
        "shorter/output:reformer.encoder.layers.0.attention.self_attention",
        _padding_seen,
    ),
    _of_reformer(
        "eval-last-gain", "the last norm's gain is left out in evaluation", "evaluation/output:reformer.encoder",
        _norm_skipped,
    ),
    _of_reformer(
        "eval-no-padding-kept", "no padding is kept between a text's end and its beginning", "unpadded/logits",
        _all_padding_left_out,
    ),
    _of_reformer(
        "eval-read-sees-itself", "the position that is read sees no other in the last layer", "narrowed/logits",
        _attends_to_what_is_read,
    ),
    _of_reformer(
        "eval-streams-of-the-last", "the streams go on with their last position, and not the one that is read",
        "narrowed/logits", _streams_of_the_last,
    ),
)  # fmt: skip

CTRL_EVALUATION: tuple[Mutant, ...] = (
    _of_ctrl("ctrl-eval-drops", "dropout in evaluation, too", "evaluation/dropout:", _drops),
    _of_ctrl(
        "ctrl-cached-positions", "tokens after a cache begin at position 0", "decoding/logits", _positions_from_zero
    ),
    _of_ctrl(
        "ctrl-cache-reversed",
        "keys of the past come in the opposite order",
        "decoding/logits",
        lambda p: _cache_of_continuation(p, lambda past: (past[0].flip(2), past[1])),
    ),
    _of_ctrl(
        "ctrl-cache-forgets",
        "the first token of the past is forgotten",
        "decoding/logits",
        lambda p: _cache(p, lambda past: (p.paddle.concat([0 * past[0][:, :, :1], past[0][:, :, 1:]], 2), past[1])),
    ),
    _of_ctrl("ctrl-cache-unmasked", "padding in the past is attended to", "decoding/logits", _mask_of_the_first),
    _of_ctrl(
        "ctrl-one-text-halves",
        "the halves of the scores of a single text are exchanged",
        "decoding/logits",
        _halves_exchanged,
    ),
)
