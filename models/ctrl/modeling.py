"""CTRL in Paddle: a pre-norm transformer decoder with sinusoidal positions, and its heads.

Keskar, McCann, Varshney, Xiong, Socher 2019, "CTRL: A Conditional Transformer Language Model for Controllable
Generation". Written from the paper and from the behavior of Hugging Face's implementation, with the same names of
parameters and configuration keys. Like that implementation, and unlike the paper, it adds masks to the scores (-1e4 for
future positions, the lowest number of the dtype for padding) and uses ``layer_norm_epsilon`` for the last norm only.

Letters in the shapes: B batch size, T positions, past earlier positions with cached keys and values.
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
from models.operations.precision import keep_precision
from models.operations.randomness import Dropout
from models.operations.trace import is_one_operation
from models.port.base import Port
from models.port.base import model_outputs as outputs


class CTRLPretrainedModel(Port):
    """Base class of all CTRL models."""

    config_class = CTRLConfig
    base_model_prefix = "transformer"


class CTRLModel(CTRLPretrainedModel):
    """Embeddings and layers, without a head.

    Attributes:
        pos_encoding: position embeddings, float32 (n_positions, n_embd).
        enable_recompute: whether training computes each layer again in the backward, to store fewer activations (Chen
            et al. 2016). PaddleNLP's Trainer sets it.
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
        """Return the layer that embeds token ids, without positions."""
        return self.w

    def table_in(self, dtype: paddle.dtype) -> Tensor:
        """Return the position table as a tensor of the given dtype, (n_positions, n_embd).

        The tensor is cached: to convert a long table takes as long as to compute a layer for one token.
        """
        cached_array, table = self._table
        if cached_array is not self.pos_encoding or table.dtype != dtype or not paddle.in_dynamic_mode():
            table = paddle.to_tensor(self.pos_encoding).astype(dtype)
            if paddle.in_dynamic_mode():  # a tensor of a static graph cannot be used outside of it
                self._table = (self.pos_encoding, table)
        return table

    def embed(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the sum of the embeddings after dropout, (B, T, n_embd).

        Token embeddings are scaled by sqrt(n_embd), position embeddings are not.

        Args:
            input_ids: token ids, int64 (B, T).
            position_ids: position of each token, int64 (B or 1, T).
            token_type_ids: ids of tokens whose embeddings are added, int64 (B, T); None adds none.
        """
        scale = math.sqrt(self.config.n_embd)
        embeddings = self.w(input_ids) * scale
        embeddings = embeddings + F.embedding(position_ids, self.table_in(embeddings.dtype))
        if token_type_ids is not None:
            embeddings = embeddings + self.w(token_type_ids) * scale
        return self.dropout(embeddings)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Sequence[Cache] | None = None,
        use_cache: bool = False,
    ) -> outputs.BaseModelOutputWithPast:
        """Return the hidden states of all positions, and the cache if ``use_cache`` is set.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, past + T); None without padding. A query that may only
                attend to padding attends to all positions equally, also to future positions, as in the reference.
            position_ids: position of each token, int64 (B or 1, T); None counts from the end of the cache.
            token_type_ids: ids of tokens whose embeddings are added, int64 (B, T); None adds none.
            past_key_values: keys and values of each layer from an earlier call, (B, heads, past, depth) each.
            use_cache: whether ``past_key_values`` for a later call are returned.

        Returns:
            ``last_hidden_state``, (B, T, n_embd), and ``past_key_values``, None without ``use_cache``.

        Raises:
            ValueError: the texts have more than ``n_positions`` tokens.
        """
        length, past_length = input_ids.shape[1], past_key_values[0][0].shape[2] if past_key_values else 0
        if position_ids is None:
            total_length = past_length + length
            if total_length > self.config.n_positions:
                raise ValueError(f"{total_length} positions are more than n_positions {self.config.n_positions}")
            position_ids = paddle.arange(past_length, total_length).unsqueeze(0)
            if is_composed(position_ids):  # one row for each text, since a broadcast sum takes ten times as long
                position_ids = paddle.tile(position_ids, [input_ids.shape[0], 1])
        hidden_states = self.embed(input_ids, position_ids, token_type_ids)
        bias = attention_bias(past_length, length, attention_mask, str(hidden_states.dtype).rsplit(".", 1)[-1])
        # Repeat the bias for each head once, not in each layer: a broadcast sum takes 40 times as long.
        if bias.ndim == 4 and is_composed(bias) and not is_one_operation(bias, loop="softmax"):
            bias = paddle.concat([bias] * self.config.n_head, axis=1)  # (B, heads, T, past + T)
        presents = []
        uses_recompute = self.enable_recompute and self.training and not use_cache
        # With frozen embeddings, the parameters of the layers still need gradients.
        if uses_recompute and hidden_states.stop_gradient:
            hidden_states = hidden_states.detach()
            hidden_states.stop_gradient = False
        for index, layer in enumerate(self.h):
            if uses_recompute:
                # Return only the hidden states: with the cache, Paddle 3.3.1 ends with a segmentation fault.
                hidden_states = recompute(keep_precision(lambda x, layer=layer: layer(x, bias)[0]), hidden_states)
                continue
            past = past_key_values[index] if past_key_values and past_length else None
            hidden_states, present = layer(hidden_states, bias, past)
            presents.append(present)
        return outputs.BaseModelOutputWithPast(
            last_hidden_state=self.layernorm(hidden_states), past_key_values=presents if use_cache else None
        )


class LMHead(nn.Layer):
    """Output layer with a score for every token of the vocabulary, with tied or separate weights."""

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__()
        if not config.tie_word_embeddings:
            self.weight = self.create_parameter([config.vocab_size, config.n_embd])
        self.bias = self.create_parameter([config.vocab_size], is_bias=True)

    def forward(self, hidden_states: Tensor, embedding: Tensor) -> Tensor:
        """Score every token of the vocabulary: (B, T, n_embd) -> (B, T, vocabulary).

        Args:
            hidden_states: output of the body, (B, T, n_embd).
            embedding: embedding of the tokens, (vocabulary, n_embd), the weight of a tied layer.
        """
        weight = getattr(self, "weight", embedding)
        return linear(hidden_states, weight, self.bias, is_transposed=True)


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
        """Score every token of the vocabulary as the next token, at each position.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, past + T) (:meth:`CTRLModel.forward`).
            labels: the tokens of each text, int64 (B, T), shifted here by one position; -100 is ignored.
            position_ids: position of each token, int64 (B or 1, T); None counts from the end of the cache.
            token_type_ids: ids of tokens whose embeddings are added, int64 (B, T); None adds none.
            cache: ``past_key_values`` and ``use_cache``.

        Returns:
            ``logits``, (B, T, vocabulary); with labels the mean ``loss`` over all labels that are not -100; and
            ``past_key_values``, None without ``use_cache``.
        """
        body = self.transformer(input_ids, attention_mask, position_ids, token_type_ids, **cache)
        logits = self.lm_head(body.last_hidden_state, self.transformer.w.weight)
        loss = None if labels is None else losses.next_token_loss(logits, labels)
        return outputs.CausalLMOutputWithCrossAttentions(loss=loss, logits=logits, past_key_values=body.past_key_values)

    def begin(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Continuation]:
        """Return the logits after the texts, (B, vocabulary), and a function for the logits after further tokens.

        Args:
            input_ids: token ids of the texts, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding on the left, (B, T); None without padding.
        """
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
        """Score every label of each text, at its last token that is not ``pad_token_id``.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T) (:meth:`CTRLModel.forward`).
            labels: int64 (B,) for one label, float (B, labels) for several labels, or float (B,) for a number.
            position_ids: position of each token, int64 (B or 1, T); None counts from 0.

        Returns:
            ``logits``, (B, labels), and with labels the ``loss``.

        Raises:
            models.port.schema.ConfigError: without ``pad_token_id``, the ends of several texts cannot be found.
        """
        pad_token_id = self.config.pad_token_id
        if pad_token_id is None and input_ids.shape[0] > 1:
            raise schema.ConfigError("pad_token_id", "not set: the ends of several texts cannot be found without it")
        scores = self.classifier(self.transformer(input_ids, attention_mask, position_ids).last_hidden_state)
        logits = scores[:, -1] if pad_token_id is None else _select_last(scores, input_ids != pad_token_id)
        loss = None if labels is None else losses.classification(self.config, logits, labels, *self.loss_settings)
        return outputs.SequenceClassifierOutput(loss=loss, logits=logits)


def _select_last(scores: Tensor, is_token: Tensor) -> Tensor:
    """Return the scores of each text at its last token, (B, labels), or at position 0 without a token.

    Args:
        scores: scores of all positions, (B, T, labels).
        is_token: whether a position has a token and not padding, bool (B, T).
    """
    last_positions = (is_token.astype("int64") * paddle.arange(is_token.shape[1])).argmax(axis=1)  # (B,)
    return paddle.take_along_axis(scores, last_positions.reshape([-1, 1, 1]), axis=1, broadcast=True)[:, 0]


#: The port's class for each head.
CLASSES = {model.head: model for model in (CTRLLMHeadModel, CTRLForSequenceClassification)}
