"""Faults of CTRL's port in a step: layers, attention, embeddings, head and loss."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np

from toolkit.parity.mutants import kernels
from toolkit.parity.mutants.fault import Mutant, around, built, result, settings


def _layer_of(port, change):
    """Replace a layer's forward by ``change(self, hidden, attended)``; ``attended`` is the attention's output."""

    def forward(self, hidden_states, bias, past=None, **how):
        attended, present = self.multi_head_attention(self.layernorm1(hidden_states), bias, past)
        return change(self, hidden_states, attended), present

    return [(port.layers.EncoderLayer, "forward", forward)]


def _post_norm(self, hidden_states, attended):
    after = self.layernorm1(hidden_states + self.dropout1(attended))
    return self.layernorm2(after + self.dropout2(self.ffn(after)))


def _residual_of_normed(self, hidden_states, attended):
    after = hidden_states + self.dropout1(attended)
    normed = self.layernorm2(after)
    return normed + self.dropout2(self.ffn(normed))


def _dropout_inside(self, hidden_states, attended):
    after = hidden_states + self.dropout1(attended)
    widened = self.dropout2(self.ffn[1](self.ffn[0](self.layernorm2(after))))
    return after + self.ffn[2](widened)


def _masked(port, ahead: int = 0, padding: float | None = None):
    """Let attention see ``ahead`` future positions, and add ``padding`` to the scores of padding."""

    def attention_bias(past, length, attention_mask, dtype):
        total = past + length
        future = port.paddle.to_tensor(np.triu(np.full([total, total], -1e4, dtype), 1 + ahead)[past:])
        lowest = float(np.finfo(dtype).min) if padding is None else padding
        return future + ((1.0 - attention_mask.astype(dtype)) * lowest).unsqueeze([1, 2])

    return [(port.modeling, "attention_bias", attention_bias)]


def _embed(port, scale=None, order="scaled"):
    def embed(self, input_ids, position_ids, token_type_ids=None, **_how_layers_are_called):
        width = self.config.n_embd**0.5 if scale is None else scale
        table = port.paddle.to_tensor(self.pos_encoding).astype(self.w.weight.dtype)
        positions = port.paddle.nn.functional.embedding(position_ids, table)
        if order == "positions scaled too":
            return self.dropout((self.w(input_ids) + positions) * width)
        if order == "dropout on tokens alone":
            return self.dropout(self.w(input_ids) * width) + positions
        return self.dropout(self.w(input_ids) * width + positions)

    return [(port.modeling.CTRLModel, "embed", embed)]


def _table(port, change):
    """Change the port's own position table."""
    original = port.modeling.position_table
    return [(port.modeling, "position_table", lambda positions, width: change(original(positions, width)))]


def _interleaved(table: np.ndarray) -> np.ndarray:
    half = table.shape[1] // 2
    return np.stack([table[:, :half], table[:, half:]], axis=2).reshape(table.shape)


def _swapped(owner, first: str, second: str):
    """Let two sublayers compute with each other's parameters."""

    def swap(layer) -> None:
        one, other = getattr(layer, first), getattr(layer, second)
        one.forward, other.forward = partial(type(other).forward, other), partial(type(one).forward, one)

    return built(owner, swap)


def _heads_interleaved(port):
    def split(self, x):
        x = x.reshape([x.shape[0], x.shape[1], self.depth, self.n_head])
        return x.transpose([0, 3, 1, 2])

    return [(port.layers.MultiHeadAttention, "_split", split)]


def _head_untied(port):
    """Let the scores send no gradient to the embedding."""
    return around(
        port.modeling.LMHead,
        "forward",
        lambda original, self, hidden_states, embedding: original(self, hidden_states, embedding.detach()),
    )


def _head_without_bias(port):
    def forward(self, hidden_states, embedding):
        return port.paddle.matmul(hidden_states, embedding, transpose_y=True) + 0 * self.bias

    return [(port.modeling.LMHead, "forward", forward)]


def _key_detached(port):
    def forward(original, self, hidden_states, bias, past=None, **how):
        projection = self.Wk.forward
        self.Wk.forward = lambda x: projection(x.detach())
        try:
            return original(self, hidden_states, bias, past, **how)
        finally:
            del self.Wk.forward

    return around(port.layers.MultiHeadAttention, "forward", forward)


def _mean_over_all(port):
    plain = port.paddle.nn.functional.cross_entropy

    def cross_entropy(logits, labels, ignored=-100):
        return plain(logits, labels, ignore_index=ignored, reduction="none").mean()

    return [(port.losses, "cross_entropy", cross_entropy)]


def _recompute_without_state(port):
    """Let recomputed layers draw new dropout masks."""
    from paddle.distributed.fleet.utils import recompute

    return [(port.modeling, "recompute", partial(recompute, preserve_rng_state=False))]


def _recomputed(port, change):
    """Replace a recomputed layer by ``change(layer, x)``."""
    original = port.modeling.recompute
    return [(port.modeling, "recompute", lambda layer, x: original(lambda y: change(layer, y), x))]


def _slightly_steeper(layer, x):
    output = layer(x)
    return output + 3e-6 * (output - output.detach())


def _norms(*names: str, factor: float):
    def change(layer) -> None:
        for name in names:
            norm = getattr(layer, name)
            norm._epsilon = norm._epsilon * factor

    return change


def _scaled_gradient(port):
    """Cut the gradient through a layer's identity path by a thousandth, and leave its value."""

    def change(self, hidden_states, attended):
        after = hidden_states * 0.999 + (hidden_states * 0.001).detach() + self.dropout1(attended)
        return after + self.dropout2(self.ffn(self.layernorm2(after)))

    return _layer_of(port, change)


_fault = partial(Mutant, family="ctrl")
_embedding = partial(_fault, expected="dropout", operation="output:transformer.dropout")
_loss = partial(_fault, expected="loss", operation="loss")
_mask = partial(_fault, expected="multi_head_attention", operation="masked_scores:")
_positions = partial(_fault, expected="pos_encoding")

LAYERS: tuple[Mutant, ...] = (
    # -- norms and activation
    _fault(
        "ctrl-norm-epsilon-x10",
        "epsilon of the layers' norms ten times too large",
        "layernorm1",
        lambda p: built(p.layers.EncoderLayer, _norms("layernorm1", "layernorm2", factor=10)),
        operation="h.0.layernorm1",
    ),
    _fault(
        "ctrl-norm-epsilon-of-config",
        "a layer's second norm takes layer_norm_epsilon, which is the last norm's",
        "layernorm2",
        lambda p: built(p.layers.EncoderLayer, _norms("layernorm2", factor=10)),
        operation="layernorm2",
    ),
    _fault(
        "ctrl-last-norm-epsilon",
        "the last norm takes the layers' epsilon",
        "transformer.layernorm",
        lambda p: built(p.modeling.CTRLModel, _norms("layernorm", factor=0.1)),
        operation="output:transformer.layernorm",
    ),
    _fault(
        "ctrl-norms-swapped",
        "the two norms of a layer exchanged",
        "layernorm",
        lambda p: _swapped(p.layers.EncoderLayer, "layernorm1", "layernorm2"),
        operation="h.0.layernorm1",
    ),
    _fault(
        "ctrl-post-norm",
        "norms after the sums, as in GPT and BERT",
        "h.0",
        lambda p: _layer_of(p, _post_norm),
        operation="h.0.layernorm2",
    ),
    _fault(
        "ctrl-gelu",
        "GELU for ReLU",
        "ffn.1",
        lambda p: built(
            p.layers.EncoderLayer, lambda layer: settings(layer.ffn[1], forward=p.paddle.nn.functional.gelu)
        ),
        operation="ffn.1",
    ),
    _fault(
        "ctrl-norm-backward",
        "the backward of LayerNorm without the gradient's mean",
        "gradient:",
        kernels.norm_backward_without_mean,
        operation="gradient:input:transformer.layernorm ",
    ),
    _fault(
        "ctrl-bias-rows",
        "the gradient of a bias leaves out rows beyond the last block of 100",
        "lm_head.bias",
        kernels.bias_gradient_of_whole_blocks,
        operation="gradient:lm_head.bias",
    ),
    # -- attention
    _fault(
        "ctrl-scale-of-width",
        "scores divided by the root of the width, not of a head's depth",
        "multi_head_attention",
        lambda p: [(p.layers, "math", SimpleNamespace(sqrt=lambda size: 32**0.5))],
        operation="scaled_scores:",
    ),
    _fault(
        "ctrl-query-key-swapped",
        "the query's and the key's weights exchanged",
        "multi_head_attention",
        lambda p: _swapped(p.layers.MultiHeadAttention, "Wq", "Wk"),
        operation="Wq",
    ),
    _fault(
        "ctrl-value-key-swapped",
        "the value's and the key's weights exchanged",
        "multi_head_attention",
        lambda p: _swapped(p.layers.MultiHeadAttention, "Wv", "Wk"),
        operation="Wk",
    ),
    _fault(
        "ctrl-heads-interleaved",
        "heads split along the wrong axis",
        "multi_head_attention",
        _heads_interleaved,
        operation="scores:",
    ),
    _fault(
        "ctrl-square-transposed", "square weights not transposed", "Wq", kernels.square_untransposed, operation="Wq"
    ),
    _fault("ctrl-bias-dropped", "linear maps without their bias", "Wq", kernels.bias_dropped, operation="Wq"),
    _fault(
        "ctrl-key-detached",
        "no gradient through the key",
        "layernorm1",
        _key_detached,
        operation="gradient:input:transformer.h.2.multi_head_attention.Wk",
    ),
    _fault(
        "ctrl-softmax-float32",
        "softmax in float32 under float64",
        "multi_head_attention",
        kernels.softmax_in_float32,
        operation="probabilities:transformer.h.0.multi_head_attention ",
    ),
    # -- masks
    _mask("ctrl-mask-off-by-one", "a position sees the next one", apply=lambda p: _masked(p, ahead=1)),
    _mask("ctrl-not-causal", "every position sees all", apply=lambda p: _masked(p, ahead=10**6)),
    _mask("ctrl-strictly-past", "a position does not see itself", apply=lambda p: _masked(p, ahead=-1)),
    _mask("ctrl-padding-seen", "padding is not masked", apply=lambda p: _masked(p, padding=0.0)),
    _mask(
        "ctrl-padding-1e4",
        "padding masked with -1e4: a query that sees nothing but padding is causal, not uniform",
        apply=lambda p: _masked(p, padding=-1e4),
    ),
    _fault(
        "ctrl-padding-float32",
        "padding masked with the lowest float32 in float64 too",
        "",
        lambda p: _masked(p, padding=float(np.finfo("float32").min)),
        harmless="a score vanishes beside -3.4e38 as beside -1.8e308, and where all are masked all are equal",
    ),
    # -- embeddings
    _embedding("ctrl-embedding-unscaled", "tokens not scaled by sqrt(n_embd)", apply=lambda p: _embed(p, scale=1.0)),
    _embedding(
        "ctrl-positions-scaled", "positions scaled like tokens", apply=lambda p: _embed(p, order="positions scaled too")
    ),
    _embedding(
        "ctrl-embedding-dropout",
        "dropout on the tokens, not on their sum with the positions",
        apply=lambda p: _embed(p, order="dropout on tokens alone"),
    ),
    _positions("ctrl-table-interleaved", "sines and cosines in turn", apply=lambda p: _table(p, _interleaved)),
    _positions(
        "ctrl-table-shifted", "positions counted from 1", apply=lambda p: _table(p, lambda t: np.roll(t, -1, 0))
    ),
    _positions(
        "ctrl-table-half-precision",
        "the position table computed in half precision",
        apply=lambda p: _table(p, lambda t: t.astype(np.float16).astype(np.float32)),
    ),
    # -- residual and dropout
    _fault(
        "ctrl-residual-normed",
        "the second sum adds to the normed states",
        "h.0",
        lambda p: _layer_of(p, _residual_of_normed),
        operation="output:transformer.h.0 ",
    ),
    _fault(
        "ctrl-residual-gradient",
        "a thousandth of the identity's gradient lost",
        "gradient:",
        _scaled_gradient,
        operation="gradient:input:transformer.h.2 ",
    ),
    _fault(
        "ctrl-dropout-inside",
        "dropout after the activation, not after the feed-forward block",
        "dropout2",
        lambda p: _layer_of(p, _dropout_inside),
        operation="h.0.ffn.2",
    ),
    _fault(
        "ctrl-dropout-rate",
        "dropout at twice its rate",
        "dropout1",
        lambda p: built(p.layers.EncoderLayer, lambda layer: settings(layer.dropout1, p=2 * layer.dropout1.p)),
        operation="dropout1",
    ),
    _fault("ctrl-recompute-fresh-mask", "layers computed again draw new masks", "replay", _recompute_without_state),
    _fault(
        "ctrl-recompute-identity",
        "a layer that is computed again loses the gradient of its identity path",
        "recomputed:gradient:",
        lambda p: _recomputed(p, lambda layer, x: layer(x) - (x - x.detach())),
    ),
    _fault(
        "ctrl-recompute-slightly",
        "the gradient of a layer that is computed again 3e-6 too large",
        "recomputed:gradient:",
        lambda p: _recomputed(p, _slightly_steeper),
    ),
    # -- head and loss
    _fault(
        "ctrl-head-untied",
        "the scores send no gradient to the embedding",
        "transformer.w",
        _head_untied,
        operation="gradient:transformer.w.weight",
    ),
    _fault("ctrl-head-bias", "scores without their bias", "lm_head", _head_without_bias, operation="lm_head"),
    _loss(
        "ctrl-labels-unshifted",
        "each position is to predict itself",
        apply=lambda p: [(p.losses, "next_tokens", lambda labels: labels)],
    ),
    _loss(
        "ctrl-labels-shifted-twice",
        "labels shifted by the data and again by the model",
        apply=lambda p: result(p.losses, "next_tokens", p.losses.next_tokens),
    ),
    _loss("ctrl-loss-over-all", "ignored labels count in the mean", apply=_mean_over_all),
    _loss("ctrl-loss-smoothed", "label smoothing of 1e-3", apply=kernels.labels_smoothed),
)
