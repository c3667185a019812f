"""The reference: a twin in torch, because transformers has no Echo."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput as Outputs

from toolkit.parity.reference.step import Step


class Layer(nn.Module):
    """Adds a map of the mean of all positions up to each."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.breadth)
        self.mix = nn.Linear(config.breadth, config.breadth)
        self.dropout = nn.Dropout(config.loss_of_echo)

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.mix(shares @ self.norm(x)))


class Body(nn.Module):
    """Embedding and layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.breadth)
        self.echo = nn.ModuleList([Layer(config) for _ in range(config.echoes)])

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        visible = torch.tril(mask.to(x)[:, None, :].repeat(1, mask.shape[1], 1))
        shares = visible / visible.sum(-1, keepdim=True).clamp(min=1.0)
        for layer in self.echo:
            x = layer(x, shares)
        return x


class Model(nn.Module):
    """A body and a head."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.body = Body(config)

    def new_weights(self) -> None:
        for layer in self.modules():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                nn.init.normal_(layer.weight, std=self.config.initializer_range)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)


class LMHeadModel(Model):
    """Predicts the next token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.breadth, config.vocab_size)
        self.new_weights()

    def forward(self, input_ids, attention_mask, labels=None):
        logits = self.lm_head(self.body(input_ids, attention_mask))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Outputs(loss=loss, logits=logits)


class ForSequenceClassification(Model):
    """Labels a text, read at its last token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.breadth, config.num_labels)
        self.new_weights()

    def forward(self, input_ids, attention_mask, labels=None):
        scores = self.classifier(self.body(input_ids, attention_mask))
        last = (attention_mask * torch.arange(scores.shape[1])).argmax(1)
        logits = scores[torch.arange(len(scores)), last]
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Outputs(loss=loss, logits=logits)


class EchoStep(Step):
    """A step of Echo."""

    heads: ClassVar = {"causal_lm": LMHeadModel, "sequence_classification": ForSequenceClassification}
    embedding_module = "body.tokens"

    def configuration(self, keys: Mapping) -> Any:
        return SimpleNamespace(**keys)


STEP = EchoStep
