"""Faults of Reformer's port in evaluation mode."""

from __future__ import annotations

from functools import partial

from toolkit.parity.mutants.evaluation import drops
from toolkit.parity.mutants.fault import Mutant, around


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


_fault = partial(Mutant, family="reformer")

EVALUATION: tuple[Mutant, ...] = (
    _fault(
        "eval-drops", "dropout in evaluation, too", "evaluation/dropout:",
        lambda p: drops(p, p.modeling, p.attention),
    ),
    _fault(
        "eval-axial-by-columns",
        "positions are read column by column in evaluation",
        "evaluation/output:reformer.embeddings.position_embeddings",
        _by_columns,
    ),
    _fault(
        "eval-short-last-positions",
        "short texts take the last positions of the table",
        "shorter/output:reformer.embeddings.position_embeddings",
        _rows_from_the_end,
    ),
    _fault(
        "eval-filling-attended",
        "what short texts are filled up with is attended to",
        "shorter/output:reformer.encoder.layers.0.attention.self_attention",
        _padding_seen,
    ),
    _fault(
        "eval-last-gain", "the last norm's gain is left out in evaluation", "evaluation/output:reformer.encoder",
        _norm_skipped,
    ),
    _fault(
        "eval-no-padding-kept", "no padding is kept between a text's end and its beginning", "unpadded/logits",
        _all_padding_left_out,
    ),
    _fault(
        "eval-read-sees-itself", "the position that is read sees no other in the last layer", "narrowed/logits",
        _attends_to_what_is_read,
    ),
    _fault(
        "eval-streams-of-the-last", "the streams go on with their last position, and not the one that is read",
        "narrowed/logits", _streams_of_the_last,
    ),
)  # fmt: skip
