"""A layer of CTRL: causal attention and feed-forward around the residual stream, positions, and the mask of scores.

Keskar et al. 2019, section 3; Vaswani et al. 2017, sections 3.2 and 3.5.
"""

from __future__ import annotations

import math

import numpy as np
import paddle
from paddle import Tensor, nn

from models.ctrl.config import CTRLConfig
from models.ctrl.heads import merge_heads, split_heads
from models.operations.ops import LayerNorm, Linear, ReLU, biased_softmax, product, softmax
from models.operations.randomness import Dropout
from models.operations.trace import at, is_one_operation

#: Epsilon of the norms inside a layer; a constant in the reference.
LAYER_EPSILON = 1e-6
#: Added to the scores of positions that lie ahead.
FUTURE = -1e4

#: A layer's keys and values, (B, heads, T, depth) each.
Cache = tuple[Tensor, Tensor]


def position_table(positions: int, width: int) -> np.ndarray:
    """Sinusoids (Vaswani et al. 2017, section 3.5), all sines before all cosines: float32 (positions, width).

    The reference computes the table in float32 whatever the model's dtype, so each step here ends in float32: the
    frequencies, the angles, the sines. Each step is rounded correctly; torch's are sometimes off by a unit in the last
    place, in places that depend on the processor.
    """
    exponents = (np.arange(0, width, 2) / np.float32(width)).astype(np.float32)
    rates = np.float32(1) / np.power(10000.0, exponents.astype(np.float64)).astype(np.float32)
    angles = (np.arange(positions, dtype=np.float32)[:, None] * rates).astype(np.float64)  # (positions, width / 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def attention_bias(past: int, length: int, attention_mask: Tensor | None, dtype: str) -> Tensor:
    """Return the bias of the scores of ``length`` queries after ``past`` positions.

    Args:
        attention_mask: (B, past + length), 0 for padding; None if there is none.

    Returns:
        (length, past + length), or (B, 1, length, past + length) with a mask.
    """
    total = past + length
    if paddle.in_dynamic_mode():
        ahead = np.arange(total) > np.arange(past, total)[:, None]  # (length, total)
        bias = paddle.to_tensor(np.where(ahead, FUTURE, 0.0).astype(dtype))
    else:  # computed: a static graph would store the numbers of a constant
        bias = paddle.triu(paddle.full([total, total], FUTURE, dtype), 1)[past:]
    if attention_mask is None:
        return bias
    padding = (1.0 - attention_mask.astype(dtype)) * float(np.finfo(dtype).min)
    return bias + padding.unsqueeze([1, 2])


class MultiHeadAttention(nn.Layer):
    """Causal self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.depth = config.n_embd // config.n_head
        self.Wq = Linear(config.n_embd, config.n_embd)
        self.Wk = Linear(config.n_embd, config.n_embd)
        self.Wv = Linear(config.n_embd, config.n_embd)
        self.dense = Linear(config.n_embd, config.n_embd)

    def forward(self, hidden_states: Tensor, bias: Tensor | None, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """(B, T, n_embd) -> (B, T, n_embd), and all keys and values so far.

        Args:
            bias: from :func:`attention_bias`; None if every position sees all.
            past: the keys and values of earlier positions.
        """
        query, key, value = (self._split(of(hidden_states)) for of in (self.Wq, self.Wk, self.Wv))
        if past is not None:
            key, value = paddle.concat([past[0], key], axis=2), paddle.concat([past[1], value], axis=2)
        scores = at("scores", product(query, key, transpose_y=True))  # (B, heads, T, past + T)
        context = at("context", product(self._weights(scores, bias), value))  # (B, heads, T, depth)
        merged = at("merged", merge_heads(context))  # (B, T, heads, depth)
        return self.dense(merged.reshape(hidden_states.shape)), (key, value)

    def _weights(self, scores: Tensor, bias: Tensor | None) -> Tensor:
        """What each position takes of each value, of the scores' shape."""
        divisor = math.sqrt(self.depth)
        if is_one_operation(scores, loop="softmax"):
            return biased_softmax(scores, divisor, bias)
        scores = at("scaled_scores", scores / divisor)
        masked = at("masked_scores", scores if bias is None else scores + bias)
        return at("probabilities", softmax(masked, unmasked=scores))

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, n_embd) -> (B, heads, T, depth)."""
        return at("heads", split_heads(x, self.n_head))


class EncoderLayer(nn.Layer):
    """Norm and attention, norm and feed-forward, each added to its input (section 3 of the paper)."""

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__()
        self.multi_head_attention = MultiHeadAttention(config)
        self.ffn = nn.Sequential(Linear(config.n_embd, config.dff), ReLU(), Linear(config.dff, config.n_embd))
        self.layernorm1 = LayerNorm(config.n_embd, epsilon=LAYER_EPSILON)
        self.layernorm2 = LayerNorm(config.n_embd, epsilon=LAYER_EPSILON)
        self.dropout1 = Dropout(config.resid_pdrop)
        self.dropout2 = Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor, bias: Tensor | None, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """(B, T, n_embd) -> (B, T, n_embd), and the layer's keys and values. Arguments as the attention's."""
        attended, present = self.multi_head_attention(self.layernorm1(hidden_states), bias, past)
        hidden_states = at("stream", hidden_states + self.dropout1(attended))
        return hidden_states + self.dropout2(self.ffn(self.layernorm2(hidden_states))), present
