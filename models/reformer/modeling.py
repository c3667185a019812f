"""The Reformer in Paddle: embeddings, reversible layers and heads.

Kitaev, Kaiser, Levskaya 2020, "Reformer: The Efficient Transformer". Written from the paper and from the behavior of
Hugging Face's implementation, with the same names of parameters and configuration keys. Attention is in
:mod:`.attention`, the reversible residual in :mod:`.reversible`.

Letters in the shapes: B batch size, T positions.
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
    """Return the result of a function that is applied to one chunk of positions after another.

    Args:
        function: function of hidden states, which must compute each position in isolation.
        chunk_size: number of positions in a chunk; 0 for one chunk with all positions.
        x: hidden states, (B, T, ...).

    Raises:
        ValueError: the length T is not a multiple of the chunk size.
    """
    if chunk_size == 0:
        return function(x)
    if x.shape[1] % chunk_size:
        raise ValueError(f"a sequence of {x.shape[1]} positions is no multiple of the chunk size {chunk_size}")
    return paddle.concat([function(part) for part in x.split(x.shape[1] // chunk_size, axis=1)], axis=1)


class AxialPositionEmbeddings(nn.Layer):
    """Position embeddings that concatenate the vectors of a row and a column (appendix "axial positional encodings").

    rows + columns vectors give the embeddings of rows * columns positions.
    """

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.axial_pos_shape = config.axial_pos_shape
        self.dropout = config.hidden_dropout_prob
        (rows, columns), (row_dim, column_dim) = config.axial_pos_shape, config.axial_pos_embds_dim
        shapes = [[rows, 1, row_dim], [1, columns, column_dim]]
        self.weights = nn.ParameterList([self.create_parameter(shape) for shape in shapes])

    def table(self) -> Tensor:
        """Return the embeddings of all positions, (rows, columns, hidden)."""
        return axial_table(*self.weights)

    def of_position(self, position: int) -> Tensor:
        """Return the embedding of one position, (hidden,), without computing the whole table."""
        (row, column), (rows, columns) = divmod(position, self.axial_pos_shape[1]), self.weights
        return paddle.concat([rows[row, 0], columns[0, column]])

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the position embeddings after dropout: (B, T) -> (B, T, hidden).

        Raises:
            ValueError: T is more than rows * columns, or, in training, less.
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
        if self.training:  # dropout drops whole columns of the table, separately for each example
            axes = [batch, columns, 1, 1]
            if compiled.supports_compiled(*self.weights, loop="axial_positions"):
                factors = dropout(paddle.ones(axes), self.dropout, True).reshape([batch, columns])
                return scale_columns(self.table(), factors).reshape([batch, length, -1])
            table = self.table().expand([batch, rows, columns, -1]).transpose([0, 2, 1, 3])
            table = dropout(table, self.dropout, True, axes).transpose([0, 2, 1, 3])
            return table.reshape([batch, length, -1])
        return F.embedding(position_ids, self.table().reshape([rows * columns, -1]))


class PositionEmbeddings(nn.Layer):
    """Position embeddings with a learned vector for every position."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def of_position(self, position: int) -> Tensor:
        """Return the embedding of one position, (hidden,)."""
        return self.embedding.weight[position]

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the position embeddings after dropout: (B, T) -> (B, T, hidden)."""
        return dropout(self.embedding(position_ids), self.dropout, self.training)


class ReformerEmbeddings(nn.Layer):
    """Sum of token and position embeddings, each with separate dropout."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.max_position_embeddings = config.max_position_embeddings
        self.dropout = config.hidden_dropout_prob
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        positions = AxialPositionEmbeddings if config.axial_pos_embds else PositionEmbeddings
        self.position_embeddings = positions(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of token ids: (B, T) -> (B, T, hidden).

        Raises:
            ValueError: T is more than ``max_position_embeddings``.
        """
        length = input_ids.shape[1]
        if length > self.max_position_embeddings:
            raise ValueError(f"{length} positions are more than max_position_embeddings {self.max_position_embeddings}")
        embeddings = dropout(self.word_embeddings(input_ids), self.dropout, self.training)
        return embeddings + self.position_embeddings(paddle.zeros_like(input_ids) + paddle.arange(length))


class ReformerSelfOutput(nn.Layer):
    """Projection of all heads to the hidden size, with dropout."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        all_heads = config.num_attention_heads * config.attention_head_size
        self.dense = Linear(all_heads, config.hidden_size, bias_attr=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the projected attention context after dropout."""
        return dropout(self.dense(hidden_states), self.dropout, self.training)


class ReformerAttention(nn.Layer):
    """Layer norm, self-attention and output projection.

    Args:
        config: configuration of the model.
        kind: kind of the attention, ``local`` or ``lsh``.
    """

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
        num_positions: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the attention, (B, T or num_positions, hidden), and the LSH buckets.

        Args:
            hidden_states: input of the attention, (B, T, hidden).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            buckets: LSH buckets of an earlier call on the same input, (B, H, R*T); None computes them.
            num_positions: number of first positions that are returned; None for all.

        Returns:
            The output, and the buckets, (B, H, R*T), or None in a local layer.
        """
        normed_states = self.layer_norm(hidden_states)
        if isinstance(self.self_attention, LSHSelfAttention):
            context, buckets = self.self_attention(normed_states, attention_mask, buckets)
        else:
            context, buckets = self.self_attention(normed_states, attention_mask), None
        return self.output(context if num_positions is None else context[:, :num_positions]), buckets


class ReformerFeedForwardDense(nn.Layer):
    """First linear layer of the feed-forward layer, with dropout before the activation."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.act_fn = ACTIVATIONS[config.hidden_act]()
        self.dense = Linear(config.hidden_size, config.feed_forward_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the activated inner states of the feed-forward part."""
        return self.act_fn(at("dropped", dropout(self.dense(hidden_states), self.dropout, self.training)))


class ReformerFeedForwardOutput(nn.Layer):
    """Second linear layer of the feed-forward layer, with dropout."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout_prob
        self.dense = Linear(config.feed_forward_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the feed-forward part's output after dropout."""
        return dropout(self.dense(hidden_states), self.dropout, self.training)


class ChunkReformerFeedForward(nn.Layer):
    """Layer norm and feed-forward layer, computed for one chunk of positions after another (section 3)."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.layer_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps)
        self.dense = ReformerFeedForwardDense(config)
        self.output = ReformerFeedForwardOutput(config)

    def forward(self, hidden_states: Tensor, at_once: bool = False) -> Tensor:
        """Return the output of the feed-forward layer: (B, T, hidden) -> (B, T, hidden).

        Args:
            hidden_states: input of the layer, (B, T, hidden).
            at_once: whether all positions are computed as one chunk, regardless of the configuration.
        """
        chunk_size = 0 if at_once else self.chunk_size_feed_forward
        return in_chunks(lambda part: self.output(self.dense(self.layer_norm(part))), chunk_size, hidden_states)


class ReformerLayer(nn.Layer):
    """A reversible layer, whose attention updates one stream, and whose feed-forward layer updates the other.

    Args:
        config: configuration of the model.
        kind: kind of the attention, ``local`` or ``lsh``.
    """

    def __init__(self, config: ReformerConfig, kind: str) -> None:
        super().__init__()
        self.attention = ReformerAttention(config, kind)
        self.feed_forward = ChunkReformerFeedForward(config)

    def forward(
        self,
        attention_stream: Stream,
        hidden_stream: Stream,
        attention_mask: Tensor | None = None,
        num_positions: int | None = None,
    ) -> tuple[Stream, Stream, LayerRecord]:
        """Return both streams after this layer, and the record that computes the layer again (:mod:`.reversible`).

        Args:
            attention_stream: attention stream before this layer, (B, T, hidden).
            hidden_stream: hidden stream before this layer, (B, T, hidden).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            num_positions: number of first positions that are returned; None for all.
        """
        attention_draws = Replay()
        update, buckets = self.attention(hidden_stream.value, attention_mask, num_positions=num_positions)
        if num_positions is not None:  # after the attention, each position is computed in isolation
            attention_stream = attention_stream.first(num_positions)
            hidden_stream = hidden_stream.first(num_positions)
        attention_stream = attention_stream.plus(update)
        feed_forward_draws = Replay()
        is_cut = num_positions is not None
        hidden_stream = hidden_stream.plus(self.feed_forward(attention_stream.value, at_once=is_cut))
        return attention_stream, hidden_stream, LayerRecord(attention_draws, feed_forward_draws, buckets)


class ReformerEncoder(nn.Layer):
    """All layers, and a layer norm of the two concatenated streams."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.LayerList([ReformerLayer(config, kind) for kind in config.attn_layers])
        self.layer_norm = LayerNorm(2 * config.hidden_size, epsilon=config.layer_norm_eps)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, num_positions: int | None = None
    ) -> Tensor:
        """Return the normalized output of both streams, (B, T or num_positions, 2 * hidden).

        Args:
            hidden_states: embeddings, (B, T, hidden).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            num_positions: number of first positions that are returned in evaluation; None for all.
        """
        inputs = (self.layers, hidden_states, attention_mask, self.config.residual)
        if self.training and self.config.backward == "reversible" and paddle.is_grad_enabled():
            streams = run_reversible(*inputs)
        else:
            streams = run_traced(*inputs, num_positions)
        normed_states = self.layer_norm(paddle.concat(list(streams), axis=-1))
        return dropout(normed_states, self.config.hidden_dropout_prob, self.training)


class ReformerPretrainedModel(Port):
    """Base class of all Reformer models."""

    config_class = ReformerConfig
    base_model_prefix = "reformer"

    #: Rows of the position table that a model for shorter texts lacks (:mod:`.positions`), (rows, 1, width). They are
    #: saved with the model.
    unreached_rows: np.ndarray | None = None

    def state_to_save(self) -> tuple[ReformerConfig, Mapping[str, np.ndarray]]:
        """Return the configuration and the weights that are saved, with all rows of the position table."""
        config, weights = super().state_to_save()
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
        """Return the layer that embeds token ids, without positions."""
        return self.embeddings.word_embeddings

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, num_positions: int | None = None
    ) -> outputs.BaseModelOutput:
        """Return the hidden states of all positions.

        In evaluation, the input is padded to a multiple of the chunk lengths, and the output is cut to T positions.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            num_positions: number of first positions that are returned in evaluation; None for all.

        Returns:
            ``last_hidden_state``, (B, T or num_positions, 2 * hidden).

        Raises:
            ValueError: the model cannot train on sequences of this length.
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
        hidden_states = self.encoder(self.embeddings(input_ids), attention_mask, num_positions)
        return outputs.BaseModelOutput(last_hidden_state=hidden_states[:, :length] if missing else hidden_states)


class ReformerClassificationHead(nn.Layer):
    """Two linear layers on the hidden state of the first position."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.dense = Linear(2 * config.hidden_size, config.hidden_size)
        rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(rate)
        self.out_proj = Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return a score for each label: (B, T, 2 * hidden) -> (B, labels)."""
        first = self.dropout(hidden_states[:, 0])
        return self.out_proj(self.dropout(tanh(self.dense(first))))


class ReformerForSequenceClassification(ReformerPretrainedModel):
    """A label, several labels or a number for a whole text."""

    head = "sequence_classification"
    architecture = "ReformerForSequenceClassification"
    #: Whether the last layer, in evaluation, omits computations that the head does not read.
    leaves_out_unread = True

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.reformer = ReformerModel(config)
        self.classifier = ReformerClassificationHead(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.SequenceClassifierOutput:
        """Score every label of each text.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            labels: int64 (B,) for one label, float (B, labels) for several labels, or float (B,) for a number.

        Returns:
            ``logits``, (B, labels), and with labels the mean ``loss``.
        """
        num_positions = 1 if self.leaves_out_unread and not self.training else None
        logits = self.classifier(self.reformer(input_ids, attention_mask, num_positions).last_hidden_state)
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
        """Score every position as the first and as the last position of the answer.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            start_positions: first position of each answer, int64 (B,); T or more is ignored, less than 0 counts as 0.
            end_positions: last position of each answer, int64 (B,), with the same rules.

        Returns:
            ``start_logits`` and ``end_logits``, (B, T) each, and with positions ``loss``, the mean of both losses.
        """
        scores = self.qa_outputs(self.reformer(input_ids, attention_mask).last_hidden_state)
        start_logits, end_logits = scores[:, :, 0], scores[:, :, 1]
        loss = None
        if start_positions is not None and end_positions is not None:
            length = scores.shape[1]
            end_losses = [
                losses.cross_entropy(logits, positions.flatten().clip(0, length), ignored_label=length)
                for logits, positions in ((start_logits, start_positions), (end_logits, end_positions))
            ]
            loss = (end_losses[0] + end_losses[1]) / 2
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
        """Score every label of each token.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            labels: label of each token, int64 (B, T); -100 is ignored.

        Returns:
            ``logits``, (B, T, labels), and with labels the mean ``loss`` over all labels that are not -100.
        """
        hidden_states = self.reformer(input_ids, attention_mask).last_hidden_state
        logits = self.classifier(self.dropout(hidden_states))
        loss = None
        if labels is not None:
            loss = losses.cross_entropy(logits.reshape([-1, logits.shape[-1]]), labels.flatten())
        return outputs.TokenClassifierOutput(loss=loss, logits=logits)


class ReformerLMHead(nn.Layer):
    """Output layer with a score for every token of the vocabulary."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.chunk_size_lm_head = config.chunk_size_lm_head
        self.bias = self.create_parameter([config.vocab_size], is_bias=True)
        self.decoder = Linear(2 * config.hidden_size, config.vocab_size)
        self.decoder.bias = self.bias

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Score every token of the vocabulary: (B, T, 2 * hidden) -> (B, T, vocabulary)."""
        return in_chunks(self.decoder, self.chunk_size_lm_head, hidden_states)


class _ReformerLM(ReformerPretrainedModel):
    """Base class of the two language models."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__(config)
        self.reformer = ReformerModel(config)
        self.lm_head = ReformerLMHead(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.MaskedLMOutput:
        """Score every token of the vocabulary at each position.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            labels: tokens of the texts, int64 (B, T); -100 is ignored.

        Returns:
            ``logits``, (B, T, vocabulary), and with labels the mean ``loss`` over all labels that are not -100.
        """
        logits = self.lm_head(self.reformer(input_ids, attention_mask).last_hidden_state)
        loss = None
        if labels is not None:
            loss = losses.cross_entropy(logits.reshape([-1, logits.shape[-1]]), self.targets(labels).flatten())
        return outputs.MaskedLMOutput(loss=loss, logits=logits)

    def targets(self, labels: Tensor) -> Tensor:
        """Return the token that each position predicts, (B, T)."""
        return labels


class ReformerForMaskedLM(_ReformerLM):
    """Predicts masked tokens; attends both ways."""

    head = "masked_lm"
    architecture = "ReformerForMaskedLM"
    #: Whether only positions with a label are scored in training. Most have no label, and scores take the most time.
    leaves_out_unread = True

    def __init__(self, config: ReformerConfig) -> None:
        if config.is_decoder:
            raise schema.ConfigError("is_decoder", "a masked language model attends both ways; set false")
        super().__init__(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.MaskedLMOutput:
        """Score every token of the vocabulary; in training with labels, return only the ``loss``.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            labels: original id of each masked token, int64 (B, T), and -100 at all other positions; None for no loss.
        """
        if labels is None or not (self.training and self.leaves_out_unread):
            return super().forward(input_ids, attention_mask, labels)
        rows = paddle.nonzero(labels.flatten() != losses.IGNORED_LABEL).flatten()
        if not len(rows):  # without labels, the mean loss is NaN
            return super().forward(input_ids, attention_mask, labels)
        hidden_states = self.reformer(input_ids, attention_mask).last_hidden_state
        row_states = paddle.gather(hidden_states.reshape([-1, hidden_states.shape[-1]]), rows)
        logits = self.lm_head.decoder(row_states)  # (number of labels, vocabulary)
        return outputs.MaskedLMOutput(loss=losses.cross_entropy(logits, paddle.gather(labels.flatten(), rows)))


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
        """Return the label of each position's next token."""
        return losses.next_tokens(labels)

    def begin(self, input_ids: Tensor) -> tuple[Tensor, Continuation]:
        """Return the logits after the texts, (B, vocabulary), and a function for the logits after further tokens.

        Args:
            input_ids: token ids of the texts without padding, int64 (B, T).
        """
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
