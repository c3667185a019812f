"""The Reformer in Paddle: embeddings, reversible layers and heads.

Kitaev, Kaiser, Levskaya 2020, "Reformer: The Efficient Transformer". Written from the paper and from the behaviour of
Hugging Face's implementation, whose parameter and configuration names it keeps. Attention is in :mod:`.attention`, the
reversible residual in :mod:`.reversible`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from models.operations import compiled, losses
from models.operations.activations import ACTIVATIONS, tanh
from models.operations.ops import LayerNorm, Linear, axial_table, scale_columns
from models.operations.randomness import Dropout, Replay, dropout
from models.operations.trace import at
from models.port.base import Port
from models.port.base import model_outputs as outputs
from models.reformer import positions, schema
from models.reformer.attention import LocalSelfAttention, LSHSelfAttention
from models.reformer.config import ReformerConfig
from models.reformer.continuation import Continuation
from models.reformer.reversible import LayerRecord, Stream, run_reversible, run_traced


def in_chunks(function: Callable[[Tensor], Tensor], chunk_size: int, x: Tensor) -> Tensor:
    """Apply ``function`` to ``chunk_size`` positions at a time (0: all at once); it must not mix positions.

    Raises:
        ValueError: the length of ``x`` (B, T, ...) is no multiple of ``chunk_size``.
    """
    if chunk_size == 0:
        return function(x)
    if x.shape[1] % chunk_size:
        raise ValueError(f"a sequence of {x.shape[1]} positions is no multiple of the chunk size {chunk_size}")
    return paddle.concat([function(part) for part in x.split(x.shape[1] // chunk_size, axis=1)], axis=1)


class AxialPositionEmbeddings(nn.Layer):
    """Position embeddings as the concatenation of a row's and a column's vector (appendix "axial positional
    encodings"): n = rows * columns positions out of rows + columns vectors."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.axial_pos_shape = config.axial_pos_shape
        self.dropout = config.hidden_dropout_prob
        (rows, columns), (row_dim, column_dim) = config.axial_pos_shape, config.axial_pos_embds_dim
        shapes = [[rows, 1, row_dim], [1, columns, column_dim]]
        self.weights = nn.ParameterList([self.create_parameter(shape) for shape in shapes])

    def table(self) -> Tensor:
        """(rows, columns, hidden)."""
        return axial_table(*self.weights)

    def of_position(self, position: int) -> Tensor:
        """(hidden,), without the whole table."""
        (row, column), (rows, columns) = divmod(position, self.axial_pos_shape[1]), self.weights
        return paddle.concat([rows[row, 0], columns[0, column]])

    def forward(self, position_ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, hidden).

        Raises:
            ValueError: in training, T is not rows * columns; otherwise, T is more.
        """
        batch, length = position_ids.shape
        rows, columns = self.axial_pos_shape
        if self.training and rows * columns != length:
            raise ValueError(
                f"training on {length} positions, but axial_pos_shape [{rows}, {columns}] has {rows * columns}; "
                f"pad the sequences to {rows * columns}, or choose a shape with the product {length}"
            )
        if rows * columns < length:
            raise ValueError(f"{length} positions, but axial_pos_shape [{rows}, {columns}] has {rows * columns}")
        if self.training:  # drops whole columns of the table, anew per example
            axes = [batch, columns, 1, 1]
            if compiled.suits(*self.weights, loop="axial_positions"):
                factors = dropout(paddle.ones(axes), self.dropout, True).reshape([batch, columns])
                return scale_columns(self.table(), factors).reshape([batch, length, -1])
            table = self.table().expand([batch, rows, columns, -1]).transpose([0, 2, 1, 3])
            table = dropout(table, self.dropout, True, axes).transpose([0, 2, 1, 3])
            return table.reshape([batch, length, -1])
        return F.embedding(position_ids, self.table().reshape([rows * columns, -1]))


class PositionEmbeddings(nn.Layer):
    """One learned vector for every position."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def of_position(self, position: int) -> Tensor:
        """(hidden,)."""
        return self.embedding.weight[position]

    def forward(self, position_ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, hidden)."""
        return dropout(self.embedding(position_ids), self.dropout, self.training)


class ReformerEmbeddings(nn.Layer):
    """Token plus position embeddings, each with its own dropout."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.max_position_embeddings = config.max_position_embeddings
        self.dropout = config.hidden_dropout_prob
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        positions = AxialPositionEmbeddings if config.axial_pos_embds else PositionEmbeddings
        self.position_embeddings = positions(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, hidden). Raises ValueError where T exceeds ``max_position_embeddings``."""
        length = input_ids.shape[1]
        if length > self.max_position_embeddings:
            raise ValueError(f"{length} positions are more than max_position_embeddings {self.max_position_embeddings}")
        embedded = dropout(self.word_embeddings(input_ids), self.dropout, self.training)
        return embedded + self.position_embeddings(paddle.zeros_like(input_ids) + paddle.arange(length))


class ReformerSelfOutput(nn.Layer):
    """Projection of all heads to hidden size."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        all_heads = config.num_attention_heads * config.attention_head_size
        self.dense = Linear(all_heads, config.hidden_size, bias_attr=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return dropout(self.dense(hidden_states), self.dropout, self.training)


class ReformerAttention(nn.Layer):
    """Layer norm, self-attention of the layer's kind, output projection."""

    def __init__(self, config: ReformerConfig, kind: str) -> None:
        super().__init__()
        self.layer_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps)
        self.self_attention = LSHSelfAttention(config) if kind == "lsh" else LocalSelfAttention(config)
        self.output = ReformerSelfOutput(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        buckets: Tensor | None = None,
        read: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, hidden) -> (B, T, hidden), or only the first ``read`` positions; and the LSH buckets (None in a local
        layer)."""
        normed = self.layer_norm(hidden_states)
        if isinstance(self.self_attention, LSHSelfAttention):
            attended, buckets = self.self_attention(normed, attention_mask, buckets)
        else:
            attended, buckets = self.self_attention(normed, attention_mask), None
        return self.output(attended if read is None else attended[:, :read]), buckets


class ReformerFeedForwardDense(nn.Layer):
    """The widening half of the feed-forward block; dropout comes before the activation."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.act_fn = ACTIVATIONS[config.hidden_act]()
        self.dense = Linear(config.hidden_size, config.feed_forward_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.act_fn(at("dropped", dropout(self.dense(hidden_states), self.dropout, self.training)))


class ReformerFeedForwardOutput(nn.Layer):
    """The narrowing half of the feed-forward block."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.dense = Linear(config.feed_forward_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return dropout(self.dense(hidden_states), self.dropout, self.training)


class ChunkReformerFeedForward(nn.Layer):
    """Layer norm and feed-forward, computed for a chunk of positions at a time to save memory (section 3)."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.layer_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps)
        self.dense = ReformerFeedForwardDense(config)
        self.output = ReformerFeedForwardOutput(config)

    def forward(self, hidden_states: Tensor, at_once: bool = False) -> Tensor:
        """(B, T, hidden) -> (B, T, hidden); ``at_once``: as one chunk, whatever the configuration."""
        chunk_size = 0 if at_once else self.chunk_size_feed_forward
        return in_chunks(lambda part: self.output(self.dense(self.layer_norm(part))), chunk_size, hidden_states)


class ReformerLayer(nn.Layer):
    """One reversible layer: attention updates the first stream, feed-forward the second."""

    def __init__(self, config: ReformerConfig, kind: str) -> None:
        super().__init__()
        self.attention = ReformerAttention(config, kind)
        self.feed_forward = ChunkReformerFeedForward(config)

    def forward(
        self,
        attention_stream: Stream,
        hidden_stream: Stream,
        attention_mask: Tensor | None = None,
        read: int | None = None,
    ) -> tuple[Stream, Stream, LayerRecord]:
        """Return the two streams after this layer, or only their first ``read`` positions; and the record that computes
        the layer again (see :mod:`.reversible`)."""
        before_attention = Replay()
        update, buckets = self.attention(hidden_stream.value, attention_mask, read=read)
        if read is not None:  # from here on positions are independent
            attention_stream, hidden_stream = attention_stream.first(read), hidden_stream.first(read)
        attention_stream = attention_stream.plus(update)
        before_feed_forward = Replay()
        hidden_stream = hidden_stream.plus(self.feed_forward(attention_stream.value, at_once=read is not None))
        return attention_stream, hidden_stream, LayerRecord(before_attention, before_feed_forward, buckets)


class ReformerEncoder(nn.Layer):
    """All layers, then a layer norm over both streams side by side."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.LayerList([ReformerLayer(config, kind) for kind in config.attn_layers])
        self.layer_norm = LayerNorm(2 * config.hidden_size, epsilon=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, read: int | None = None) -> Tensor:
        """(B, T, hidden) -> (B, T, 2 * hidden), or, in evaluation, only the first ``read``
        positions."""
        given = (self.layers, hidden_states, attention_mask, self.config.residual)
        if self.training and self.config.backward == "reversible" and paddle.is_grad_enabled():
            streams = run_reversible(*given)
        else:
            streams = run_traced(*given, read)
        normed = self.layer_norm(paddle.concat(list(streams), axis=-1))
        return dropout(normed, self.config.hidden_dropout_prob, self.training)


class ReformerPretrainedModel(Port):
    """The base of every Reformer model."""

    config_class = ReformerConfig
    base_model_prefix = "reformer"

    #: Rows of the position table cut off for training (:mod:`.positions`); they are saved with the model.
    unreached_rows: np.ndarray | None = None

    def stored(self) -> tuple[ReformerConfig, Mapping[str, np.ndarray]]:
        """As :meth:`models.port.base.Port.stored`, with the whole position table."""
        config, weights = super().stored()
        if self.unreached_rows is None:
            return config, weights
        config = copy.copy(config)
        for key, value in positions.restore_config(vars(config), self.unreached_rows).items():
            setattr(config, key, value)
        return config, positions.restore_weights(weights, self.unreached_rows)


class ReformerModel(ReformerPretrainedModel):
    """Embeddings and layers, without a head."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.embeddings = ReformerEmbeddings(config)
        self.encoder = ReformerEncoder(config)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, read: int | None = None
    ) -> outputs.BaseModelOutput:
        """Run the body.

        Args:
            input_ids: int64 (B, T).
            attention_mask: (B, T), 0 for padding; all 1 if absent.
            read: in evaluation, return only this many first positions of the output; None: all.

        Returns:
            ``last_hidden_state`` (B, T, 2 * hidden), or its first ``read`` positions.

        Raises:
            ValueError: in training, a length that the model cannot train on. In evaluation the input is padded to a
                multiple of the chunk lengths, and the output cut back.
        """
        length = input_ids.shape[1]
        lengths = schema.chunk_lengths(self.config)
        missing = -length % math.lcm(*lengths) if length > min(lengths) else 0
        if missing:
            if self.training:
                raise ValueError(
                    f"training on {length} positions, no multiple of the chunk lengths {lengths}; "
                    f"pad the sequences to {length + missing}"
                )
            if attention_mask is None:
                attention_mask = paddle.ones_like(input_ids)
            input_ids = F.pad(input_ids, [0, 0, 0, missing], value=self.config.pad_token_id, pad_from_left_axis=True)
            attention_mask = F.pad(attention_mask.astype("int64"), [0, 0, 0, missing], pad_from_left_axis=True)
        hidden_states = self.encoder(self.embeddings(input_ids), attention_mask, read)
        return outputs.BaseModelOutput(last_hidden_state=hidden_states[:, :length] if missing else hidden_states)


class ReformerClassificationHead(nn.Layer):
    """Two layers on the first position's hidden state."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dense = Linear(2 * config.hidden_size, config.hidden_size)
        rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(rate)
        self.out_proj = Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, T, 2 * hidden) -> (B, labels)."""
        first = self.dropout(hidden_states[:, 0])
        return self.out_proj(self.dropout(tanh(self.dense(first))))


class ReformerForSequenceClassification(ReformerPretrainedModel):
    """A label, several labels or a number for a whole text."""

    head = "sequence_classification"
    architecture = "ReformerForSequenceClassification"
    #: Whether, in evaluation, the last layer skips what the head does not read.
    leaves_out_unread = True

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.reformer = ReformerModel(config)
        self.classifier = ReformerClassificationHead(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.SequenceClassifierOutput:
        """Classify.

        Args:
            input_ids, attention_mask: as :meth:`ReformerModel.forward`.
            labels: int64 (B,) classes; float (B, labels) for several labels at once; float (B,) for a number.

        Returns:
            ``logits`` (B, labels) and, given labels, the mean ``loss``.
        """
        read = 1 if self.leaves_out_unread and not self.training else None
        logits = self.classifier(self.reformer(input_ids, attention_mask, read).last_hidden_state)
        loss = None if labels is None else losses.classification(self.config, logits, labels, *self.loss_settings)
        return outputs.SequenceClassifierOutput(loss=loss, logits=logits)


class ReformerForQuestionAnswering(ReformerPretrainedModel):
    """Where in a text an answer begins and ends."""

    head = "question_answering"
    architecture = "ReformerForQuestionAnswering"

    def __init__(self, config: ReformerConfig) -> None:
        if config.num_labels != 2:
            raise schema.ConfigError("num_labels", f"{config.num_labels}; an answer has two ends, first and last: 2")
        super().__init__(config)
        self.reformer = ReformerModel(config)
        self.qa_outputs = Linear(2 * config.hidden_size, 2)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> outputs.QuestionAnsweringModelOutput:
        """Score every position as the first and as the last of the answer.

        Args:
            input_ids, attention_mask: as :meth:`ReformerModel.forward`.
            start_positions, end_positions: int64 (B,); T or more is ignored, less than 0 counts as 0.

        Returns:
            ``start_logits``, ``end_logits`` (B, T) and, given positions, ``loss``, the average of both.
        """
        scores = self.qa_outputs(self.reformer(input_ids, attention_mask).last_hidden_state)
        start_logits, end_logits = scores[:, :, 0], scores[:, :, 1]
        loss = None
        if start_positions is not None and end_positions is not None:
            length = scores.shape[1]
            parts = [
                losses.cross_entropy(logits, positions.flatten().clip(0, length), ignored=length)
                for logits, positions in ((start_logits, start_positions), (end_logits, end_positions))
            ]
            loss = (parts[0] + parts[1]) / 2
        return outputs.QuestionAnsweringModelOutput(loss=loss, start_logits=start_logits, end_logits=end_logits)


class ReformerForTokenClassification(ReformerPretrainedModel):
    """A label for each token; transformers has no such head for Reformer."""

    head = "token_classification"
    architecture = "ReformerForTokenClassification"

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.reformer = ReformerModel(config)
        rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(rate)
        self.classifier = Linear(2 * config.hidden_size, config.num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.TokenClassifierOutput:
        """Label every token.

        Args:
            input_ids, attention_mask: as :meth:`ReformerModel.forward`.
            labels: int64 (B, T); -100 is ignored.

        Returns:
            ``logits`` (B, T, labels) and, given labels, the mean ``loss`` over those that are not ignored.
        """
        hidden_states = self.reformer(input_ids, attention_mask).last_hidden_state
        logits = self.classifier(self.dropout(hidden_states))
        loss = None
        if labels is not None:
            loss = losses.cross_entropy(logits.reshape([-1, logits.shape[-1]]), labels.flatten())
        return outputs.TokenClassifierOutput(loss=loss, logits=logits)


class ReformerLMHead(nn.Layer):
    """Scores for every token of the vocabulary."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.chunk_size_lm_head = config.chunk_size_lm_head
        self.bias = self.create_parameter([config.vocab_size], is_bias=True)
        self.decoder = Linear(2 * config.hidden_size, config.vocab_size)
        self.decoder.bias = self.bias

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, T, 2 * hidden) -> (B, T, vocabulary)."""
        return in_chunks(self.decoder, self.chunk_size_lm_head, hidden_states)


class _ReformerLM(ReformerPretrainedModel):
    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.reformer = ReformerModel(config)
        self.lm_head = ReformerLMHead(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.MaskedLMOutput:
        """Score every token.

        Args:
            input_ids, attention_mask: as :meth:`ReformerModel.forward`.
            labels: int64 (B, T); -100 is ignored.

        Returns:
            ``logits`` (B, T, vocabulary) and, given labels, the mean ``loss`` over those that are not ignored.
        """
        logits = self.lm_head(self.reformer(input_ids, attention_mask).last_hidden_state)
        loss = None
        if labels is not None:
            loss = losses.cross_entropy(logits.reshape([-1, logits.shape[-1]]), self.targets(labels).flatten())
        return outputs.MaskedLMOutput(loss=loss, logits=logits)

    def targets(self, labels: Tensor) -> Tensor:
        """The label that each position predicts, (B, T)."""
        return labels


class ReformerForMaskedLM(_ReformerLM):
    """Predicts masked tokens; attends both ways."""

    head = "masked_lm"
    architecture = "ReformerForMaskedLM"
    #: Whether, in training, only positions with a label are scored: most have none, and scores cost the most.
    leaves_out_unread = True

    def __init__(self, config: ReformerConfig) -> None:
        if config.is_decoder:
            raise schema.ConfigError("is_decoder", "a masked language model attends both ways; set false")
        super().__init__(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.MaskedLMOutput:
        """As that of every language model; in training with labels, without ``logits``."""
        if labels is None or not (self.training and self.leaves_out_unread):
            return super().forward(input_ids, attention_mask, labels)
        read = paddle.nonzero(labels.flatten() != losses.IGNORED_LABEL).flatten()
        if not len(read):  # their mean loss is NaN
            return super().forward(input_ids, attention_mask, labels)
        hidden_states = self.reformer(input_ids, attention_mask).last_hidden_state
        read_states = paddle.gather(hidden_states.reshape([-1, hidden_states.shape[-1]]), read)
        logits = self.lm_head.decoder(read_states)  # (labels, vocabulary)
        return outputs.MaskedLMOutput(loss=losses.cross_entropy(logits, paddle.gather(labels.flatten(), read)))


class ReformerModelWithLMHead(_ReformerLM):
    """Predicts the next token; attends to the past."""

    head = "causal_lm"
    architecture = "ReformerModelWithLMHead"
    has_cache = True

    def __init__(self, config: ReformerConfig) -> None:
        if not config.is_decoder:
            raise schema.ConfigError("is_decoder", "a causal language model attends to the past alone; set true")
        super().__init__(config)

    def targets(self, labels: Tensor) -> Tensor:
        return losses.next_tokens(labels)

    def begin(self, input_ids: Tensor) -> tuple[Tensor, Continuation]:
        """Return the logits (B, vocabulary) after texts (B, T) without padding, and a function for those after each
        further token."""
        continuation = Continuation(self, input_ids)
        return continuation.logits, continuation


#: The port's class for each head.
CLASSES = {
    model.head: model
    for model in (
        ReformerForSequenceClassification,
        ReformerForQuestionAnswering,
        ReformerModelWithLMHead,
        ReformerForMaskedLM,
        ReformerForTokenClassification,
    )
}
