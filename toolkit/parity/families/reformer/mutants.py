"""Faults of Reformer's port."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants import kernels
from toolkit.parity.mutants.batch import REFORMER_BATCH
from toolkit.parity.mutants.draws import REFORMER_DRAWS
from toolkit.parity.mutants.evaluation import REFORMER_EVALUATION
from toolkit.parity.mutants.fault import Mutant, around, built, result, settings
from toolkit.parity.mutants.initialisation import REFORMER_INITIALISATION
from toolkit.parity.mutants.loading import REFORMER_LOADING
from toolkit.parity.mutants.loops import below_the_noise
from toolkit.parity.mutants.precision import HASHING
from toolkit.parity.mutants.precision import PRECISION as SHARED
from toolkit.parity.mutants.settings import REFORMER_SETTINGS
from toolkit.parity.mutants.tokenizers import REFORMER_TOKENIZER
from toolkit.parity.mutants.trainer import TRAINER
from toolkit.parity.mutants.training import TRAINING


def _port() -> SimpleNamespace:
    import paddle

    from models.operations import losses, ops, randomness, rows
    from models.port import weights
    from models.reformer import attention, modeling, reversible

    return SimpleNamespace(
        paddle=paddle,
        ops=ops,
        losses=losses,
        randomness=randomness,
        attention=attention,
        modeling=modeling,
        reversible=reversible,
        rows=rows,
        weights=weights,
        chunked=attention.ChunkedSelfAttention,
        local=attention.LocalSelfAttention,
        lsh=attention.LSHSelfAttention,
    )


def _no_scale(port):
    """Leave out 1/sqrt(D): the root of the head size that the module sees becomes 1."""
    return [(port.attention, "math", SimpleNamespace(**{**vars(math), "sqrt": lambda size: 1.0}))]


def _swapped_streams(port):
    def forward(self, hidden_states, attention_mask=None, read=None):
        run = port.reversible.run_traced
        attention, hidden = run(self.layers, hidden_states, attention_mask, self.config.residual, read)
        normed = self.layer_norm(port.paddle.concat([hidden, attention], axis=-1))
        return port.randomness.dropout(normed, self.config.hidden_dropout_prob, self.training)

    return [(port.modeling.ReformerEncoder, "forward", forward)]


def _feed_forward_from(port, source: str):
    """Feed the second half of a layer from the wrong stream, or leave out its sum."""

    def forward(self, attention_stream, hidden_stream, attention_mask=None, read=None):
        before_attention = port.reversible.Replay()
        update, buckets = self.attention(hidden_stream.value, attention_mask)
        after = attention_stream.plus(update)
        before_feed_forward = port.reversible.Replay()
        chosen = {"hidden": hidden_stream, "stale": attention_stream, "update": after}[source]
        fed = self.feed_forward(update if source == "update" else chosen.value)
        record = port.reversible.LayerRecord(before_attention, before_feed_forward, buckets)
        return after, hidden_stream.plus(fed), record

    return [(port.modeling.ReformerLayer, "forward", forward)]


def _mask_by(port, kept: Callable):
    """Use another causal or padding rule in local attention."""
    return result(port.local, "kept_positions", kept)


def _accumulated_gradient(port):
    def again(original, self, replay, block, x, grad):
        original(self, replay, block, x, grad)
        return original(self, replay, block, x, grad)

    return around(port.reversible._Run, "_again", again)


def _hash_round_average(port):
    return [(port.attention, "softmax_over", lambda x, axis: port.paddle.full_like(x, 1.0 / x.shape[axis]))]


def _dropout_after_activation(port):
    def forward(self, hidden_states):
        return port.randomness.dropout(self.act_fn(self.dense(hidden_states)), self.dropout, self.training)

    return [(port.modeling.ReformerFeedForwardDense, "forward", forward)]


def _activation(port, activation):
    return built(port.modeling.ReformerFeedForwardDense, lambda layer: setattr(layer, "act_fn", activation))


def _head_of(port, position: int):
    def forward(original, self, hidden_states):
        return original(self, port.paddle.roll(hidden_states, -position, 1))

    return around(port.modeling.ReformerClassificationHead, "forward", forward)


def _unscaled_dropout(port):
    def dropout(x, p, training, mask_shape=None):
        return port_dropout(x, p, training, mask_shape) * (1.0 - p if training and p else 1.0)

    port_dropout = port.randomness.dropout
    return [(port.modeling, "dropout", dropout), (port.attention, "dropout", dropout)]


def _unstable_sort(port):
    """Sort equal buckets in the opposite order of their positions."""
    sort = port.paddle.argsort

    def argsort(x, axis=-1, **options):
        return x.shape[-1] - 1 - sort(x.flip(-1), axis=axis, **options)

    return [(port.paddle, "argsort", argsort)]


def _gather_without_inverse(port):
    """Take the gradient of a row gather in the forward order."""

    def backward(ctx, grad):
        return port.paddle.gather(grad, ctx.order.index[: ctx.order.inverse.shape[1]])

    return [(port.rows._Gather, "backward", staticmethod(backward))]


def _dropped_bias(port):
    def forward(original, self, x):
        return port.paddle.matmul(x, self.weight)

    return around(port.ops.Linear, "forward", forward)


def _untransposed_square(port):
    def to_paddle(value, role):
        square = value.ndim == 2 and value.shape[0] == value.shape[1]
        return value.T if role == "linear" and not square else value

    return [(port.weights, "to_paddle", to_paddle)]


def _embedding_scaled(port):
    def forward(original, self, input_ids):
        return original(self, input_ids) * math.sqrt(self.word_embeddings.weight.shape[1])

    return around(port.modeling.ReformerEmbeddings, "forward", forward)


def _label_smoothing(port):
    plain = port.losses.cross_entropy

    def smoothed(logits, labels):
        uniform = -port.paddle.nn.functional.log_softmax(logits).mean()
        return 0.999 * plain(logits, labels) + 0.001 * uniform

    return [(port.losses, "cross_entropy", smoothed)]


def _sum_over_mean(port):
    plain = port.losses.cross_entropy
    return [(port.losses, "cross_entropy", lambda logits, labels: plain(logits, labels) * labels.shape[0])]


def _look(port, kind, **values):
    return built(kind, lambda layer: settings(layer, **values))


def _no_self_mask(port):
    def against(place, seen, compare):
        found = port_against(place, seen, compare)
        return port.paddle.ones_like(found) if compare is port.paddle.not_equal else found

    port_against = port.attention.against
    return [(port.attention, "against", against)]


def _key_from(port, change: Callable):
    return around(port.lsh, "as_key", change)


def _epsilon(port, factor: float):
    return built(port.ops.LayerNorm, lambda layer: settings(layer, _epsilon=layer._epsilon * factor))


def _swapped_query_and_key(port):
    def forward(original, self, hidden_states, attention_mask=None):
        self._sub_layers["query"], self._sub_layers["key"] = self._sub_layers["key"], self._sub_layers["query"]
        try:
            return original(self, hidden_states, attention_mask)
        finally:
            self._sub_layers["query"], self._sub_layers["key"] = self._sub_layers["key"], self._sub_layers["query"]

    return around(port.local, "forward", forward)


def _scaled_block_gradient(port, factor: float):
    def again(original, self, replay, block, x, grad):
        return original(self, replay, block, x, factor * grad)

    return around(port.reversible._Run, "_again", again)


def _rounded_on_the_way_back(port):
    """Round a block's input to float32 on the way back."""

    def again(original, self, replay, block, x, grad):
        return original(self, replay, block, x.astype("float32").astype(x.dtype), grad)

    return around(port.reversible._Run, "_again", again)


def _fresh_draws(port):
    """Let a recomputed block draw anew."""
    return [(port.randomness.Replay, "__enter__", lambda self: setattr(self, "_before", self._source.state()))]


def _lost_residual_gradient(port):
    """Lose a thousandth of the identity path's gradient."""

    def again(original, self, replay, block, x, grad):
        update, inner = original(self, replay, block, x, grad)
        return update, inner - grad * 1e-3

    return around(port.reversible._Run, "_again", again)


_fault = partial(Mutant, port=_port)

REFORMER: tuple[Mutant, ...] = (
    # -- normalisation, activation, linear maps
    _fault(
        "norm-epsilon-x10",
        "LayerNorm epsilon ten times too large",
        "layer_norm",
        lambda p: _epsilon(p, 10),
        operation="output:reformer.encoder.layers.0.attention.layer_norm",
    ),
    _fault(
        "norm-epsilon-paddle",
        "LayerNorm with Paddle's default epsilon of 1e-5",
        "layer_norm",
        lambda p: _epsilon(p, 1e7),
        operation="output:reformer.encoder.layers.0.attention.layer_norm",
    ),
    _fault(
        "tanh-gelu",
        "GELU by its tanh approximation",
        "act_fn",
        lambda p: _activation(p, p.paddle.nn.GELU(True)),
        operation="act_fn",
    ),
    _fault(
        "relu-for-gelu", "ReLU for GELU", "act_fn", lambda p: _activation(p, p.paddle.nn.ReLU()), operation="act_fn"
    ),
    _fault(
        "norm-backward",
        "the backward of LayerNorm without the gradient's mean",
        "gradient:",
        kernels.norm_backward_without_mean,
        operation="gradient:input:reformer.encoder.layer_norm ",
    ),
    _fault(
        "bias-dropped",
        "linear layers without their bias",
        "feed_forward.dense.dense",
        _dropped_bias,
        operation="feed_forward.dense.dense",
    ),
    _fault(
        "square-untransposed",
        "square weights loaded untransposed",
        "self_attention",
        _untransposed_square,
        operation="self_attention.query",
    ),
    _fault(
        "embedding-scaled",
        "embeddings multiplied by sqrt(hidden)",
        "embeddings",
        _embedding_scaled,
        operation="output:reformer.embeddings",
    ),
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
        lambda p: _look(p, p.local, num_chunks_before=0, num_chunks_after=1),
        operation="adjacent:",
    ),
    _fault(
        "lsh-looks-ahead",
        "LSH attention looks at the next chunk, not the last",
        "self_attention",
        lambda p: _look(p, p.lsh, num_chunks_before=0, num_chunks_after=1),
        operation="adjacent:",
    ),
    _fault(
        "no-look-back",
        "chunks do not see their neighbours",
        "self_attention",
        lambda p: _look(p, p.chunked, num_chunks_before=0, num_chunks_after=0),
        operation="scores:",
    ),
    _fault(
        "chunk-length",
        "local chunks half as long",
        "self_attention",
        lambda p: built(p.local, lambda layer: settings(layer, chunk_length=layer.chunk_length // 2)),
        operation="adjacent:",
    ),
    # -- hashing
    _fault(
        "bucket-axes",
        "buckets numbered from the negative axes",
        "buckets",
        lambda p: around(p.lsh, "hash_vectors", lambda original, self, v, r, b, m: original(self, -v, r, b, m)),
    ),
    _fault(
        "padding-bucket",
        "padding hashed like text, without a bucket of its own",
        "buckets",
        lambda p: around(p.lsh, "hash_vectors", lambda original, self, v, r, b, m: original(self, v, r, b, None)),
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
    # -- dropout
    _fault("dropout-unscaled", "dropout without 1/(1-p)", "embeddings", _unscaled_dropout),
    _fault(
        "dropout-rate",
        "attention dropout at twice its rate",
        "self_attention",
        lambda p: built(p.chunked, lambda layer: settings(layer, dropout=2 * layer.dropout)),
        operation="dropped:",
    ),
    _fault(
        "dropout-missing",
        "no dropout after the attention's output projection",
        "attention.output",
        lambda p: built(p.modeling.ReformerSelfOutput, lambda layer: settings(layer, dropout=0.0)),
        operation="attention.output",
    ),
    _fault(
        "dropout-after-activation",
        "feed-forward dropout after the activation",
        "feed_forward.dense",
        _dropout_after_activation,
        operation="act_fn",
    ),
    _fault("fresh-dropout-mask", "a recomputed block draws its dropout masks anew", "replay", _fresh_draws),
    # -- the residual
    _fault(
        "streams-swapped",
        "the two residual streams concatenated in the wrong order",
        "encoder",
        _swapped_streams,
        operation="output:reformer.encoder.layer_norm",
    ),
    _fault(
        "feed-forward-from-hidden",
        "feed-forward reads the stream it updates",
        "feed_forward",
        lambda p: _feed_forward_from(p, "hidden"),
        operation="feed_forward.layer_norm",
    ),
    _fault(
        "feed-forward-from-stale",
        "feed-forward reads the stream before attention",
        "feed_forward",
        lambda p: _feed_forward_from(p, "stale"),
        operation="feed_forward.layer_norm",
    ),
    _fault(
        "feed-forward-from-update",
        "feed-forward reads attention's output without the residual",
        "feed_forward",
        lambda p: _feed_forward_from(p, "update"),
        operation="feed_forward.layer_norm",
    ),
    _fault(
        "residual-gradient",
        "a thousandth of the identity path's gradient lost",
        "recomputed:gradient:",
        _lost_residual_gradient,
    ),
    _fault(
        "gradient-accumulated", "the backward of each block runs twice", "recomputed:gradient:", _accumulated_gradient
    ),
    _fault(
        "block-gradient",
        "a block's gradient 5% too large",
        "recomputed:gradient:",
        lambda p: _scaled_block_gradient(p, 1.05),
    ),
    _fault(
        "block-gradient-slightly",
        "a block's gradient 3e-6 too large",
        "recomputed:gradient:",
        lambda p: _scaled_block_gradient(p, 1 + 3e-6),
    ),
    _fault(
        "streams-back-in-float32",
        "the way back through the layers in float32",
        "recomputed:gradient:",
        _rounded_on_the_way_back,
    ),
    _fault(
        "gather-backward",
        "the gradient of sorting taken in the forward order",
        "gradient:",
        _gather_without_inverse,
        operation="gradient:",
    ),
    # -- head and loss
    _fault(
        "head-at-position-1",
        "the classification head reads the second position",
        "classifier",
        lambda p: _head_of(p, 1),
        operation="classifier.dropout",
    ),
    _fault(
        "head-at-last",
        "the classification head reads the last position",
        "classifier",
        lambda p: _head_of(p, -1),
        operation="classifier.dropout",
    ),
    _fault("loss-summed", "the loss is a sum, not a mean", "loss", _sum_over_mean, operation="loss"),
    _fault("loss-smoothed", "label smoothing of 1e-3", "loss", _label_smoothing, operation="loss"),
)

#: All faults that the gate is tried with.
CATALOGUE = (
    *REFORMER,
    *REFORMER_BATCH,
    *REFORMER_EVALUATION,
    *REFORMER_SETTINGS,
    *REFORMER_DRAWS,
    *TRAINING,
    *TRAINER,
    *REFORMER_TOKENIZER,
    *REFORMER_LOADING,
    *REFORMER_INITIALISATION,
)
#: Faults in bfloat16.
PRECISION = (*SHARED, HASHING)

#: Faults below float32's noise, named by the loop itself.
LOOPS = below_the_noise(
    "softmax_rows",
    "cross_entropy_rows",
    "cross_entropy_rows_backward",
    "norm_rows",
    "norm_rows_backward",
    "add_on_grid",
)
