"""The port in Paddle."""

from __future__ import annotations

import paddle
from models.echo.config import EchoConfig
from paddle import Tensor, nn

from models.operations import losses
from models.operations.ops import LayerNorm, Linear
from models.operations.randomness import Dropout
from models.port.base import Port
from models.port.base import model_outputs as outputs


class EchoLayer(nn.Layer):
    """Adds a map of the mean of all positions up to each."""

    def __init__(self, config: EchoConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.breadth)
        self.sums = config.means == "sum"
        self.mix = Linear(config.breadth, config.breadth)
        self.dropout = Dropout(config.loss_of_echo)

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        """(B, T, width), (B, T, T) -> (B, T, width)."""
        normalized_x = self.norm(x)
        if self.sums:
            means = (shares.unsqueeze(-1) * normalized_x.unsqueeze(1)).sum(2)
        else:
            means = paddle.matmul(shares, normalized_x)
        return x + self.dropout(self.mix(means))


class EchoPretrainedModel(Port):
    """The base of every Echo."""

    config_class = EchoConfig
    base_model_prefix = "body"


class EchoModel(EchoPretrainedModel):
    """Embedding and layers."""

    def __init__(self, config: EchoConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.breadth)
        self.echo = nn.LayerList([EchoLayer(config) for _ in range(config.echoes)])

    def get_input_embeddings(self) -> nn.Embedding:
        return self.tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, width)."""
        x = self.tokens(input_ids)
        mask = paddle.ones_like(input_ids) if attention_mask is None else attention_mask
        visible = paddle.tril(paddle.tile(mask.astype(x.dtype).unsqueeze(1), [1, mask.shape[1], 1]))
        shares = visible / visible.sum(-1, keepdim=True).clip(min=1.0)
        for layer in self.echo:
            x = layer(x, shares)
        return x


class EchoLMHeadModel(EchoPretrainedModel):
    """Predicts the next token."""

    head = "causal_lm"
    architecture = "EchoLMHeadModel"

    def __init__(self, config: EchoConfig) -> None:
        super().__init__(config)
        self.body = EchoModel(config)
        self.lm_head = Linear(config.breadth, config.vocab_size)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.CausalLMOutputWithCrossAttentions:
        """Score every token."""
        logits = self.lm_head(self.body(input_ids, attention_mask))
        loss = None if labels is None else losses.next_token_loss(logits, labels)
        return outputs.CausalLMOutputWithCrossAttentions(loss=loss, logits=logits)


class EchoForSequenceClassification(EchoPretrainedModel):
    """Labels a text, read at its last token."""

    head = "sequence_classification"
    architecture = "EchoForSequenceClassification"

    def __init__(self, config: EchoConfig) -> None:
        super().__init__(config)
        self.body = EchoModel(config)
        self.classifier = Linear(config.breadth, config.num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> outputs.SequenceClassifierOutput:
        """Classify."""
        mask = paddle.ones_like(input_ids) if attention_mask is None else attention_mask
        last = (mask.astype("int64") * paddle.arange(mask.shape[1])).argmax(axis=1)
        scores = self.classifier(self.body(input_ids, attention_mask))
        logits = paddle.take_along_axis(scores, last.reshape([-1, 1, 1]), axis=1, broadcast=True)[:, 0]
        loss = None if labels is None else losses.classification(self.config, logits, labels, *self.loss_settings)
        return outputs.SequenceClassifierOutput(loss=loss, logits=logits)


CLASSES = {model.head: model for model in (EchoLMHeadModel, EchoForSequenceClassification)}
