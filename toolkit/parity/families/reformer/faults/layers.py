"""Faults of Reformer's layers around attention: norms, activation, dropout, the two streams, head and loss."""

from __future__ import annotations

import math
from functools import partial

from toolkit.parity.mutants import kernels
from toolkit.parity.mutants.fault import Mutant, around, built, settings


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


def _accumulated_gradient(port):
    def again(original, self, replay, block, x, grad):
        original(self, replay, block, x, grad)
        return original(self, replay, block, x, grad)

    return around(port.reversible._Run, "_again", again)


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


def _gather_without_inverse(port):
    """Take the gradient of a row gather in the forward order."""

    def backward(ctx, grad):
        return port.paddle.gather(grad, ctx.order.index[: ctx.order.inverse.shape[1]])

    return [(port.rows._Gather, "backward", staticmethod(backward))]


def _embedding_scaled(port):
    def forward(original, self, input_ids):
        return original(self, input_ids) * math.sqrt(self.word_embeddings.weight.shape[1])

    return around(port.modeling.ReformerEmbeddings, "forward", forward)


def _sum_over_mean(port):
    plain = port.losses.cross_entropy
    return [(port.losses, "cross_entropy", lambda logits, labels: plain(logits, labels) * labels.shape[0])]


def _epsilon(port, factor: float):
    return built(port.ops.LayerNorm, lambda layer: settings(layer, _epsilon=layer._epsilon * factor))


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


_fault = partial(Mutant, family="reformer")
_activated = partial(_fault, expected="act_fn", operation="act_fn")
_feed_forward = partial(_fault, expected="feed_forward", operation="feed_forward.layer_norm")
_head = partial(_fault, expected="classifier", operation="classifier.dropout")
_norms = partial(_fault, expected="layer_norm", operation="output:reformer.encoder.layers.0.attention.layer_norm")
_way_back = partial(_fault, expected="recomputed:gradient:")

#: Faults of what comes before attention.
MAPS: tuple[Mutant, ...] = (
    _norms("norm-epsilon-x10", "LayerNorm epsilon ten times too large", apply=lambda p: _epsilon(p, 10)),
    _norms("norm-epsilon-paddle", "LayerNorm with Paddle's default epsilon of 1e-5", apply=lambda p: _epsilon(p, 1e7)),
    _activated("tanh-gelu", "GELU by its tanh approximation", apply=lambda p: _activation(p, p.paddle.nn.GELU(True))),
    _activated("relu-for-gelu", "ReLU for GELU", apply=lambda p: _activation(p, p.paddle.nn.ReLU())),
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
        kernels.bias_dropped,
        operation="feed_forward.dense.dense",
    ),
    _fault(
        "square-untransposed",
        "square weights loaded untransposed",
        "self_attention",
        kernels.square_untransposed,
        operation="self_attention.query",
    ),
    _fault(
        "embedding-scaled",
        "embeddings multiplied by sqrt(hidden)",
        "embeddings",
        _embedding_scaled,
        operation="output:reformer.embeddings",
    ),
)

#: Faults of what comes after it.
STREAMS: tuple[Mutant, ...] = (
    # -- dropout
    _fault("dropout-unscaled", "dropout without 1/(1-p)", "embeddings", _unscaled_dropout),
    _fault(
        "dropout-rate",
        "attention dropout at twice its rate",
        "self_attention",
        lambda p: built(p.attention.ChunkedSelfAttention, lambda layer: settings(layer, dropout=2 * layer.dropout)),
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
    _feed_forward(
        "feed-forward-from-hidden",
        "feed-forward reads the stream it updates",
        apply=lambda p: _feed_forward_from(p, "hidden"),
    ),
    _feed_forward(
        "feed-forward-from-stale",
        "feed-forward reads the stream before attention",
        apply=lambda p: _feed_forward_from(p, "stale"),
    ),
    _feed_forward(
        "feed-forward-from-update",
        "feed-forward reads attention's output without the residual",
        apply=lambda p: _feed_forward_from(p, "update"),
    ),
    _way_back("residual-gradient", "a thousandth of the identity path's gradient lost", apply=_lost_residual_gradient),
    _way_back("gradient-accumulated", "the backward of each block runs twice", apply=_accumulated_gradient),
    _way_back("block-gradient", "a block's gradient 5% too large", apply=lambda p: _scaled_block_gradient(p, 1.05)),
    _way_back(
        "block-gradient-slightly",
        "a block's gradient 3e-6 too large",
        apply=lambda p: _scaled_block_gradient(p, 1 + 3e-6),
    ),
    _way_back("streams-back-in-float32", "the way back through the layers in float32", apply=_rounded_on_the_way_back),
    _fault(
        "gather-backward",
        "the gradient of sorting taken in the forward order",
        "gradient:",
        _gather_without_inverse,
        operation="gradient:",
    ),
    # -- head and loss
    _head("head-at-position-1", "the classification head reads the second position", apply=lambda p: _head_of(p, 1)),
    _head("head-at-last", "the classification head reads the last position", apply=lambda p: _head_of(p, -1)),
    _fault("loss-summed", "the loss is a sum, not a mean", "loss", _sum_over_mean, operation="loss"),
    _fault("loss-smoothed", "label smoothing of 1e-3", "loss", kernels.labels_smoothed, operation="loss"),
)
