"""What CTRL says after each further token of texts: one position at a time, with the keys and values of those before.

On a CPU a token of a small model is not arithmetic but what stands around it: layers that are called, hooks that are
looked for, gradients that nobody wants. So the layers of :mod:`.modeling` call those inside of them :func:`as_a_layer`
where somebody trains or looks on, and :func:`plainly` here.

Of a larger one it is reading the weights, and there a product of a single row with a matrix keeps one core busy; those
with its two halves, stacked, are computed side by side (1280 by 8192 on two cores: 1.4 ms for 2.0). For a small matrix
that is more calls than it is worth (320 by 1024: 86 us for 59).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from models.compiled import numel
from models.ops import LayerNorm, Linear
from models.precision import is_lowered
from models.randomness import Dropout

if TYPE_CHECKING:
    from models.ctrl.modeling import Cache, CTRLLMHeadModel

#: Numbers of a matrix whose halves are worth a product each.
LARGE = 2**20
#: Calls a layer with its arguments.
Call = Callable[..., Any]


def as_a_layer(layer: nn.Layer, *given: Any) -> Any:
    """What a layer gives, with its hooks."""
    return layer(*given)


def plainly(layer: nn.Layer, *given: Any) -> Any:
    """The same in evaluation, without hooks and gradients."""
    compute = PLAIN.get(type(layer))
    return layer.forward(*given, call=plainly) if compute is None else compute(layer, *given)


def _map(linear: Any, x: Tensor) -> Tensor:
    weight = linear.weight
    depth, width = weight.shape
    if depth * width < LARGE or depth % 2 or numel(x) > depth:
        return paddle.matmul(x, weight) + linear.bias
    halves = paddle.matmul(x.reshape([2, 1, depth // 2]), weight.reshape([2, depth // 2, width]))
    return (halves.sum(0) + linear.bias).reshape([*x.shape[:-1], width])


def _norm(norm: Any, x: Tensor) -> Tensor:
    if x.dtype == paddle.float64:  # whose epsilon Paddle's rounds
        return norm(x)
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm._epsilon)


def _scores(x: Tensor, weight: Tensor) -> Tensor:
    """(B, width) by (vocabulary, width): (B, vocabulary)."""
    vocabulary, width = weight.shape
    if vocabulary * width < LARGE or vocabulary % 2 or x.shape[0] > 1:
        return paddle.matmul(x, weight, transpose_y=True)
    halves = weight.reshape([2, vocabulary // 2, width])  # a view
    return paddle.matmul(x.expand([2, 1, -1]), halves, transpose_y=True).reshape([1, vocabulary])


def _one_after_another(layers: Any, x: Tensor) -> Tensor:
    for layer in layers:
        x = plainly(layer, x)
    return x


#: By layer, what it computes in evaluation; any other is one of :mod:`.modeling`, which is told how to call those
#: inside of it.
PLAIN: dict[type, Callable[[Any, Tensor], Tensor]] = {
    Linear: _map,
    LayerNorm: _norm,
    Dropout: lambda layer, x: x,
    nn.Embedding: lambda layer, x: F.embedding(x, layer.weight),
    nn.ReLU: lambda layer, x: F.relu(x),
    nn.Sequential: _one_after_another,
}


class Continuation:
    """Goes on with texts of which a model has kept keys and values.

    Args:
        model: in evaluation mode.
        past: of each layer, keys and values (B, heads, T, depth).
        attention_mask: (B, T), 0 for padding; all 1 if absent.
        bias_of: :func:`.modeling.attention_bias`.
    """

    def __init__(
        self,
        model: CTRLLMHeadModel,
        past: Sequence[Cache],
        attention_mask: Tensor | None,
        bias_of: Callable[[int, int, Tensor, str], Tensor],
    ) -> None:
        self.model = model
        self.past = list(past)
        self.attention_mask = attention_mask
        self._bias_of = bias_of

    @property
    def texts(self) -> int:
        """How many there are, B."""
        return self.past[0][0].shape[0]

    def choose(self, rows: Tensor) -> None:
        """Go on with these of the texts, int64 (B,), some of them more than once."""
        self.past = [(paddle.index_select(k, rows), paddle.index_select(v, rows)) for k, v in self.past]
        if self.attention_mask is not None:
            self.attention_mask = paddle.index_select(self.attention_mask, rows)

    def __call__(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """The logits (B, vocabulary) after one token (B, 1) more of each text.

        Args:
            kept: (B, 1), 0 for a token that is padding; all 1 if absent.

        Raises:
            ValueError: more positions than ``n_positions``.
        """
        position = self.past[0][0].shape[2]
        self._keep(tokens, kept, position)
        if not _is_plain(self.model):
            output = self.model(tokens, self.attention_mask, past_key_values=self.past, use_cache=True)
            self.past = list(output.past_key_values)
            return output.logits[:, -1]
        body = self.model.transformer
        if position >= body.config.n_positions:
            raise ValueError(f"{position + 1} positions are more than n_positions {body.config.n_positions}")
        bias = None
        if self.attention_mask is not None:
            bias = self._bias_of(position, 1, self.attention_mask, str(body.w.weight.dtype).rsplit(".", 1)[-1])
        hidden_states = body.embed(tokens, paddle.full_like(tokens, position), call=plainly)  # (B, 1, n_embd)
        for index, layer in enumerate(body.h):
            hidden_states, self.past[index] = plainly(layer, hidden_states, bias, self.past[index])
        head = self.model.lm_head
        weight = getattr(head, "weight", body.w.weight)
        return _scores(_norm(body.layernorm, hidden_states.squeeze(1)), weight) + head.bias

    def _keep(self, tokens: Tensor, kept: Tensor | None, position: int) -> None:
        """Put the tokens' own part behind the mask."""
        if self.attention_mask is None and kept is None:
            return
        if self.attention_mask is None:
            self.attention_mask = paddle.ones([tokens.shape[0], position], "int64")
        own = paddle.ones_like(tokens) if kept is None else kept
        before = self.attention_mask
        self.attention_mask = paddle.concat([before, own.astype(before.dtype)], axis=1)


def _is_plain(model: CTRLLMHeadModel) -> bool:
    """Whether its layers are those of this folder, in the precision of their weights, without dropout or gradients."""
    return (
        model.adapter is None
        and not model.training
        and not (is_lowered("linear") or is_lowered("attention") or paddle.is_grad_enabled())
    )
