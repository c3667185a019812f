"""CTRL in Paddle: a pre-norm transformer decoder over sinusoidal positions, and its heads.

Keskar, McCann, Varshney, Xiong, Socher 2019, "CTRL: A Conditional Transformer Language Model for Controllable
Generation". Written from the paper and from the behaviour of Hugging Face's implementation, whose parameter and
configuration names it keeps. It also keeps what that does beyond the paper: masks are added (-1e4 for the future, the
lowest number for padding), and ``layer_norm_epsilon`` applies to the last norm only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute

from models.ctrl import schema
from models.ctrl.config import CTRLConfig
from models.ctrl.continuation import Continuation
from models.ctrl.layers import Cache, EncoderLayer, attention_bias, position_table
from models.operations import losses
from models.operations.ops import LayerNorm, Linear, is_composed, linear
from models.operations.precision import carried
from models.operations.randomness import Dropout
from models.operations.trace import is_one_operation
from models.port.base import Port
from models.port.base import model_outputs as outputs


class CTRLPretrainedModel(Port):
    """The base of every CTRL model."""

    config_class = CTRLConfig
    base_model_prefix = "transformer"


class CTRLModel(CTRLPretrainedModel):
    """Embeddings and layers, without a head.

    Attributes:
        enable_recompute: in training, recompute each layer in the backward instead of keeping its activations (Chen
            et al. 2016); PaddleNLP's Trainer sets it.
    """

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__(config)
        self.w = nn.Embedding(config.vocab_size, config.n_embd)
        self.dropout = Dropout(config.embd_pdrop)
        self.h = nn.LayerList([EncoderLayer(config) for _ in range(config.n_layer)])
        self.layernorm = LayerNorm(config.n_embd, epsilon=config.layer_norm_epsilon)
        self.pos_encoding = position_table(config.n_positions, config.n_embd)
        self._table: tuple[np.ndarray | None, Tensor] = (None, paddle.zeros([0]))
        self.enable_recompute = False

    def get_input_embeddings(self) -> nn.Embedding:
        return self.w

    def table_in(self, dtype: paddle.dtype) -> Tensor:
        """Return the position table as a tensor, made once: a long one takes as long as a layer on one token."""
        held, table = self._table
        if held is not self.pos_encoding or table.dtype != dtype or not paddle.in_dynamic_mode():
            table = paddle.to_tensor(self.pos_encoding).astype(dtype)
            if paddle.in_dynamic_mode():  # a static graph's belongs to it
                self._table = (self.pos_encoding, table)
        return table

    def embed(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, n_embd): tokens scaled by sqrt(n_embd), plus positions, through dropout."""
        scale = math.sqrt(self.config.n_embd)
        embedded = self.w(input_ids) * scale
        embedded = embedded + F.embedding(position_ids, self.table_in(embedded.dtype))
        if token_type_ids is not None:
            embedded = embedded + self.w(token_type_ids) * scale
        return self.dropout(embedded)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Sequence[Cache] | None = None,
        use_cache: bool = False,
    ) -> outputs.BaseModelOutputWithPast:
        """Run the body.

        Args:
            input_ids: int64 (B, T).
            attention_mask: (B, past + T), 0 for padding; all 1 if absent. A query that sees only padding
                attends to all positions equally, also those ahead, as in the reference.
            position_ids: int64 (B or 1, T); past, past + 1, ... if absent.
            token_type_ids: int64 (B, T), tokens whose embedding is added.
            past_key_values: from an earlier call, whose positions come before these.
            use_cache: return ``past_key_values`` for a later call.

        Returns:
            ``last_hidden_state`` (B, T, n_embd), and ``past_key_values`` if asked for.

        Raises:
            ValueError: more positions than ``n_positions``.
        """
        length, past = input_ids.shape[1], past_key_values[0][0].shape[2] if past_key_values else 0
        if position_ids is None:
            if past + length > self.config.n_positions:
                raise ValueError(f"{past + length} positions are more than n_positions {self.config.n_positions}")
            position_ids = paddle.arange(past, past + length).unsqueeze(0)
            if is_composed(position_ids):  # expanded: a sum by broadcasting takes ten times as long
                position_ids = paddle.tile(position_ids, [input_ids.shape[0], 1])
        hidden_states = self.embed(input_ids, position_ids, token_type_ids)
        bias = attention_bias(past, length, attention_mask, str(hidden_states.dtype).rsplit(".", 1)[-1])
        # Once per batch: a broadcast sum takes 40 times as long.
        if bias.ndim == 4 and is_composed(bias) and not is_one_operation(bias, loop="softmax"):
            bias = paddle.concat([bias] * self.config.n_head, axis=1)  # (B, heads, T, past + T)
        presents = []
        again = self.enable_recompute and self.training and not use_cache
        if (
            again and hidden_states.stop_gradient
        ):  # frozen embeddings: the layers' parameters still want their gradients
            hidden_states = hidden_states.detach()
            hidden_states.stop_gradient = False
        for index, layer in enumerate(self.h):
            if again:
                # Only the hidden states: with the cache as well, Paddle 3.3.1 ends in a segmentation fault.
                hidden_states = recompute(carried(lambda x, layer=layer: layer(x, bias)[0]), hidden_states)
                continue
            hidden_states, present = layer(
                hidden_states, bias, past_key_values[index] if past_key_values and past else None
            )
            presents.append(present)
        return outputs.BaseModelOutputWithPast(
            last_hidden_state=self.layernorm(hidden_states), past_key_values=presents if use_cache else None
        )


class LMHead(nn.Layer):
    """Scores every token of the vocabulary, with tied weights or a weight of its own."""

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__()
        if not config.tie_word_embeddings:
            self.weight = self.create_parameter([config.vocab_size, config.n_embd])
        self.bias = self.create_parameter([config.vocab_size], is_bias=True)

    def forward(self, hidden_states: Tensor, embedding: Tensor) -> Tensor:
        """(B, T, n_embd) -> (B, T, vocabulary); ``embedding`` is the weight unless the layer has its own."""
        weight = getattr(self, "weight", embedding)
        return linear(hidden_states, weight, self.bias, transposed=True)


class CTRLLMHeadModel(CTRLPretrainedModel):
    """Predicts the next token."""

    head = "causal_lm"
    architecture = "CTRLLMHeadModel"
    has_cache = has_reference_cache = True
    repetition_penalty = 1.2  # Keskar et al. 2019, section 4.1

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__(config)
        self.transformer = CTRLModel(config)
        self.lm_head = LMHead(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **cache: Any,
    ) -> outputs.CausalLMOutputWithCrossAttentions:
        """Score every token.

        Args:
            labels: int64 (B, T), unshifted; -100 is ignored. They are shifted here.
            cache, and the others: as :meth:`CTRLModel.forward`.

        Returns:
            ``logits`` (B, T, vocabulary), given labels the mean ``loss`` over those that are not ignored, and
            ``past_key_values`` if asked for.
        """
        body = self.transformer(input_ids, attention_mask, position_ids, token_type_ids, **cache)
        logits = self.lm_head(body.last_hidden_state, self.transformer.w.weight)
        loss = None if labels is None else losses.next_token_loss(logits, labels)
        return outputs.CausalLMOutputWithCrossAttentions(loss=loss, logits=logits, past_key_values=body.past_key_values)

    def begin(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Continuation]:
        """Return the logits (B, vocabulary) after texts (B, T), and a function for those after each further token.
        ``attention_mask`` (B, T) is 0 for padding, which must be on the left; all 1 if absent."""
        body = self.transformer(input_ids, attention_mask, use_cache=True)
        logits = self.lm_head(body.last_hidden_state[:, -1:], self.transformer.w.weight)
        return logits[:, 0], Continuation(self, body.past_key_values, attention_mask, attention_bias)


class CTRLForSequenceClassification(CTRLPretrainedModel):
    """A label, several labels or a number for a whole text, read at its last token."""

    head = "sequence_classification"
    architecture = "CTRLForSequenceClassification"

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__(config)
        self.transformer = CTRLModel(config)
        self.classifier = Linear(config.n_embd, config.num_labels, bias_attr=False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> outputs.SequenceClassifierOutput:
        """Classify.

        Args:
            input_ids, attention_mask, position_ids: as :meth:`CTRLModel.forward`.
            labels: as :func:`models.operations.losses.classification`.

        Returns:
            ``logits`` (B, labels) at the last token that is not ``pad_token_id``, and, given labels, the ``loss``.

        Raises:
            models.port.schema.ConfigError: several texts, and no ``pad_token_id`` to find their ends.
        """
        padding = self.config.pad_token_id
        if padding is None and input_ids.shape[0] > 1:
            raise schema.ConfigError("pad_token_id", "not set: the ends of several texts cannot be found without it")
        scores = self.classifier(self.transformer(input_ids, attention_mask, position_ids).last_hidden_state)
        logits = scores[:, -1] if padding is None else _at_last(scores, input_ids != padding)
        loss = None if labels is None else losses.classification(self.config, logits, labels, *self.loss_settings)
        return outputs.SequenceClassifierOutput(loss=loss, logits=logits)


def _at_last(scores: Tensor, kept: Tensor) -> Tensor:
    """(B, T, labels) -> (B, labels), at each row's last kept position (the first, if none)."""
    last = (kept.astype("int64") * paddle.arange(kept.shape[1])).argmax(axis=1)
    return paddle.take_along_axis(scores, last.reshape([-1, 1, 1]), axis=1, broadcast=True)[:, 0]


#: The port's class for each head.
CLASSES = {model.head: model for model in (CTRLLMHeadModel, CTRLForSequenceClassification)}
