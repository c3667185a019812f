"""Add the layers of low-rank adaptation (:mod:`.lora`) to a port, and merge them into its weights.

The layers of PaddleNLP's ``peft`` are not used. They draw dropout from Paddle's generator and not from
:mod:`.randomness`, so that the parity gate could not replay the reference's draws. ``LoRAModel`` also renames the
parameters, and merges by adding to the weights in place, which rounds each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import nn

from models.operations.ops import Linear, linear
from models.operations.randomness import dropout
from models.port.lora import LoRA, merge_weights
from models.port.weights import parameter_values, to_paddle


class LoRALinear(nn.Layer):
    """A linear layer with a low-rank update, W0 x + b + (alpha / r) B A x.

    Args:
        base: linear layer whose weight W0 and bias b become parameters of this layer.
        lora: settings of the adapter.
    """

    def __init__(self, base: Linear, lora: LoRA) -> None:
        super().__init__()
        num_inputs, num_outputs = base.weight.shape
        self.weight, self.bias = base.weight, base.bias
        self.lora_A = Linear(num_inputs, lora.rank, bias_attr=False)
        self.lora_B = Linear(lora.rank, num_outputs, bias_attr=False)
        self.dropout = lora.dropout
        self.scale = lora.scale

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Apply the adapted linear layer: (..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias) + self.update(x)

    def update(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return the low-rank update, (..., out), of an input (..., in). Only the input of A has dropout."""
        return self.lora_B(self.lora_A(dropout(x, self.dropout, self.training))) * self.scale


def add_adapter(model: nn.Layer, lora: LoRA, prefix: str = "") -> None:
    """Replace the targeted linear layers by adapted layers, and freeze all parameters that are not trained.

    Args:
        model: a port, or a part of it.
        lora: settings of the adapter.
        prefix: name of ``model`` in the whole model; empty for the whole model.
    """
    for name, layer in list(model.named_sublayers()):
        if isinstance(layer, Linear) and lora.is_target(_full_name(prefix, name)):
            _replace_layer(model, name, LoRALinear(layer, lora))
    for name, parameter in model.named_parameters():
        parameter.stop_gradient = not lora.is_trained(_full_name(prefix, name))
    if not prefix:
        model.adapter = lora


def merge_adapter(model: Any) -> None:
    """Add the updates to the weights and remove the adapter, so that the port is a plain model again."""
    weights = merge_weights(parameter_values(model), model.adapter)
    for name, layer in list(model.named_sublayers()):
        if isinstance(layer, LoRALinear):
            value = to_paddle(weights[f"{name}.weight"], "linear")
            layer.weight.set_value(np.ascontiguousarray(value))
            plain_layer = Linear(*layer.weight.shape, bias_attr=False)
            plain_layer.weight, plain_layer.bias = layer.weight, layer.bias
            _replace_layer(model, name, plain_layer)
    model.adapter = None
    for parameter in model.parameters():
        parameter.stop_gradient = False


def _full_name(prefix: str, name: str) -> str:
    """Return a parameter's name within a module whose path is ``prefix``, or the name itself for an empty prefix."""
    return f"{prefix}.{name}" if prefix else name


def _replace_layer(model: nn.Layer, name: str, new_layer: nn.Layer) -> None:
    """Replace the sublayer of the given name by a new layer.

    Args:
        model: model whose sublayer is replaced, in place.
        name: full name of the sublayer, such as ``encoder.layers.0.query``.
        new_layer: layer that gets this name.
    """
    parent_name, _, attribute = name.rpartition(".")
    parent = dict(model.named_sublayers(include_self=True))[parent_name]
    setattr(parent, attribute, new_layer)
