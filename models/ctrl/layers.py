"""A layer of CTRL, its position table, and the bias of its attention scores.

Letters in the shapes: B batch size, T positions, past earlier positions with cached keys and values.

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

#: Epsilon of the layer norms inside a layer, a constant in the reference.
LAYER_EPSILON = 1e-6
#: Bias of the scores of future positions.
FUTURE_BIAS = -1e4

#: The keys and values of a layer, (B, heads, T, depth) each.
Cache = tuple[Tensor, Tensor]


def position_table(num_positions: int, width: int) -> np.ndarray:
    """Return the sinusoidal position embeddings (Vaswani et al. 2017, section 3.5), float32 (num_positions, width).

    All sines come before all cosines. The reference computes the table in float32 for every dtype of the model, so
    each step is rounded to float32: the frequencies, the angles, and the sines. The rounding is correct here, but
    torch's results are sometimes off by a unit in the last place, depending on the processor.
    """
    exponents = (np.arange(0, width, 2) / np.float32(width)).astype(np.float32)
    rates = np.float32(1) / np.power(10000.0, exponents.astype(np.float64)).astype(np.float32)
    positions = np.arange(num_positions, dtype=np.float32)[:, None]  # (num_positions, 1)
    angles = (positions * rates).astype(np.float64)  # (num_positions, width / 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def attention_bias(past_length: int, length: int, attention_mask: Tensor | None, dtype: str) -> Tensor:
    """Return the bias that masks future positions and padding in the attention scores.

    Args:
        past_length: number of earlier positions.
        length: number of query positions.
        attention_mask: 1 for tokens and 0 for padding, (B, past_length + length); None without padding.
        dtype: dtype of the bias.

    Returns:
        The bias, (length, past_length + length), or (B, 1, length, past_length + length) with a mask.
    """
    total_length = past_length + length
    if paddle.in_dynamic_mode():
        is_future = np.arange(total_length) > np.arange(past_length, total_length)[:, None]  # (length, total_length)
        bias = paddle.to_tensor(np.where(is_future, FUTURE_BIAS, 0.0).astype(dtype))
    else:  # computed by operations, since a static graph would store a constant with all its values
        bias = paddle.triu(paddle.full([total_length, total_length], FUTURE_BIAS, dtype), 1)[past_length:]
    if attention_mask is None:
        return bias
    padding_bias = (1.0 - attention_mask.astype(dtype)) * float(np.finfo(dtype).min)  # (B, total_length)
    return bias + padding_bias.unsqueeze([1, 2])  # (B, 1, length, total_length)


class MultiHeadAttention(nn.Layer):
    """Causal multi-head self-attention (Vaswani et al. 2017, section 3.2).

    Args:
        config: configuration with the number of heads, ``n_head``, and the width, ``n_embd``.
    """

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.depth = config.n_embd // config.n_head
        self.Wq = Linear(config.n_embd, config.n_embd)
        self.Wk = Linear(config.n_embd, config.n_embd)
        self.Wv = Linear(config.n_embd, config.n_embd)
        self.dense = Linear(config.n_embd, config.n_embd)

    def forward(self, hidden_states: Tensor, bias: Tensor | None, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return the output of the attention, (B, T, n_embd), and the keys and values of all positions so far.

        Args:
            hidden_states: input of the attention, (B, T, n_embd).
            bias: bias of the scores from :func:`attention_bias`; None if every position attends to all positions.
            past: keys and values of earlier positions, (B, heads, past, depth) each; None without earlier positions.
        """
        query = self._split_heads(self.Wq(hidden_states))  # (B, heads, T, depth)
        key = self._split_heads(self.Wk(hidden_states))  # (B, heads, T, depth)
        value = self._split_heads(self.Wv(hidden_states))  # (B, heads, T, depth)
        if past is not None:
            key = paddle.concat([past[0], key], axis=2)  # (B, heads, past + T, depth)
            value = paddle.concat([past[1], value], axis=2)  # (B, heads, past + T, depth)
        scores = at("scores", product(query, key, transpose_y=True))  # (B, heads, T, past + T)
        probabilities = self._attention_probabilities(scores, bias)  # (B, heads, T, past + T)
        context = at("context", product(probabilities, value))  # (B, heads, T, depth)
        context = at("merged", merge_heads(context))  # (B, T, heads, depth)
        return self.dense(context.reshape(hidden_states.shape)), (key, value)  # (B, T, n_embd)

    def _attention_probabilities(self, scores: Tensor, bias: Tensor | None) -> Tensor:
        """Return the attention probabilities, softmax(scores / sqrt(depth) + bias), (B, heads, T, past + T)."""
        divisor = math.sqrt(self.depth)
        if is_one_operation(scores, loop="softmax"):
            return biased_softmax(scores, divisor, bias)
        scores = at("scaled_scores", scores / divisor)
        masked_scores = at("masked_scores", scores if bias is None else scores + bias)
        return at("probabilities", softmax(masked_scores, unmasked=scores))

    def _split_heads(self, x: Tensor) -> Tensor:
        """Split the last axis into heads: (B, T, n_embd) -> (B, heads, T, depth)."""
        return at("heads", split_heads(x, self.n_head))


class EncoderLayer(nn.Layer):
    """A pre-norm layer: attention and feed-forward layer, each after a layer norm and with a residual connection.

    See Keskar et al. 2019, section 3.

    Args:
        config: configuration with ``n_head``, ``n_embd``, ``dff`` and ``resid_pdrop``.
    """

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__()
        self.multi_head_attention = MultiHeadAttention(config)
        self.ffn = nn.Sequential(Linear(config.n_embd, config.dff), ReLU(), Linear(config.dff, config.n_embd))
        self.layernorm1 = LayerNorm(config.n_embd, epsilon=LAYER_EPSILON)
        self.layernorm2 = LayerNorm(config.n_embd, epsilon=LAYER_EPSILON)
        self.dropout1 = Dropout(config.resid_pdrop)
        self.dropout2 = Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor, bias: Tensor | None, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return the output of the layer, (B, T, n_embd), and its keys and values of all positions so far.

        Args:
            hidden_states: input of the layer, (B, T, n_embd).
            bias: bias of the scores from :func:`attention_bias`; None if every position attends to all positions.
            past: keys and values of earlier positions, (B, heads, past, depth) each; None without earlier positions.
        """
        attention_output, present = self.multi_head_attention(self.layernorm1(hidden_states), bias, past)
        hidden_states = at("stream", hidden_states + self.dropout1(attention_output))
        return hidden_states + self.dropout2(self.ffn(self.layernorm2(hidden_states))), present
