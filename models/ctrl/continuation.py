"""What CTRL says after each further token of texts: one position at a time, with the keys and values of those before.

On a CPU a token of a small model is not arithmetic but what stands around it: layers that are called, hooks that are
looked for, gradients that nobody wants. Here the same operations are called with the same weights, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor

from models.precision import is_lowered

if TYPE_CHECKING:
    from models.ctrl.modeling import Cache, CTRLLMHeadModel


class Continuation:
    """Goes on with texts of which a model has kept keys and values.

    Args:
        model: in evaluation mode.
        past: of each layer, keys and values (B, heads, T, depth).
    """

    def __init__(self, model: CTRLLMHeadModel, past: Sequence[Cache]) -> None:
        self.model = model
        self.past = list(past)
        self.table = paddle.to_tensor(model.transformer.pos_encoding).astype(model.transformer.w.weight.dtype)

    @property
    def texts(self) -> int:
        """How many there are, B."""
        return self.past[0][0].shape[0]

    def choose(self, rows: Tensor) -> None:
        """Go on with these of the texts, int64 (B,), some of them more than once."""
        self.past = [(paddle.index_select(k, rows), paddle.index_select(v, rows)) for k, v in self.past]

    def __call__(self, tokens: Tensor) -> Tensor:
        """The logits (B, vocabulary) after one token (B, 1) more of each text.

        Raises:
            ValueError: more positions than ``n_positions``.
        """
        if not _is_plain(self.model):
            output = self.model(tokens, past_key_values=self.past, use_cache=True)
            self.past = list(output.past_key_values)
            return output.logits[:, -1]
        body, position = self.model.transformer, self.past[0][0].shape[2]
        if position >= body.config.n_positions:
            raise ValueError(f"{position + 1} positions are more than n_positions {body.config.n_positions}")
        embedded = F.embedding(tokens.flatten(), body.w.weight) * math.sqrt(body.config.n_embd)
        hidden_states = embedded + self.table[position]  # (B, n_embd)
        for index, layer in enumerate(body.h):
            hidden_states, self.past[index] = _layer(layer, hidden_states, *self.past[index])
        head = self.model.lm_head
        weight = getattr(head, "weight", body.w.weight)
        return paddle.matmul(_norm(body.layernorm, hidden_states), weight, transpose_y=True) + head.bias


def _is_plain(model: CTRLLMHeadModel) -> bool:
    """Whether its layers are those of this folder, in the precision of their weights, without dropout or gradients."""
    return (
        model.adapter is None
        and not model.training
        and not (is_lowered("linear") or is_lowered("attention") or paddle.is_grad_enabled())
    )


def _layer(layer: Any, hidden_states: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Cache]:
    """One position of :class:`models.ctrl.modeling.EncoderLayer`: (B, n_embd) -> (B, n_embd). It comes last, and sees
    all others: there is nothing to mask."""
    attention, normed = layer.multi_head_attention, _norm(layer.layernorm1, hidden_states)
    one = [normed.shape[0], attention.n_head, 1, attention.depth]
    query, key, value = (_map(of, normed).reshape(one) for of in (attention.Wq, attention.Wk, attention.Wv))
    keys, values = paddle.concat([keys, key], axis=2), paddle.concat([values, value], axis=2)
    scores = paddle.matmul(query, keys, transpose_y=True) / math.sqrt(attention.depth)  # (B, heads, 1, T + 1)
    context = paddle.matmul(F.softmax(scores), values)  # (B, heads, 1, depth)
    hidden_states = hidden_states + _map(attention.dense, context.reshape(normed.shape))
    widened = F.relu(_map(layer.ffn[0], _norm(layer.layernorm2, hidden_states)))
    return hidden_states + _map(layer.ffn[2], widened), (keys, values)


def _map(linear: Any, x: Tensor) -> Tensor:
    return paddle.matmul(x, linear.weight) + linear.bias


def _norm(norm: Any, x: Tensor) -> Tensor:
    if x.dtype == paddle.float64:  # whose epsilon Paddle's rounds
        return norm(x)
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm._epsilon)
