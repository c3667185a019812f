"""Put the layers of low-rank adaptation (:mod:`.lora`) into a port, and take them out again.

PaddleNLP's ``peft`` has such layers, but they do not fit here. Its dropout draws from Paddle's generator, not from
:mod:`.randomness`, so that the parity gate could not give it the reference's draws. ``LoRAModel`` wraps a model under
names of its own, and merges by adding to the weights in place, which rounds each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import nn

from models.operations.ops import Linear, linear
from models.operations.randomness import dropout
from models.port.lora import LoRA, merged
from models.port.weights import to_paddle, values_of


class LoRALinear(nn.Layer):
    """A linear map and its low-rank update: W0 x + b + (alpha / r) B A x. The parameters of ``base`` become this
    layer's."""

    def __init__(self, base: Linear, lora: LoRA) -> None:
        super().__init__()
        inputs, outputs = base.weight.shape
        self.weight, self.bias = base.weight, base.bias
        self.lora_A = Linear(inputs, lora.rank, bias_attr=False)
        self.lora_B = Linear(lora.rank, outputs, bias_attr=False)
        self.dropout = lora.dropout
        self.scale = lora.scale

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """(..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias) + self.update(x)

    def update(self, x: paddle.Tensor) -> paddle.Tensor:
        """(..., in) -> (..., out): the trained part. Dropout is on its input, not on W0's."""
        return self.lora_B(self.lora_A(dropout(x, self.dropout, self.training))) * self.scale


def adapt(model: nn.Layer, lora: LoRA, prefix: str = "") -> None:
    """Put an adapter into a model. Then only the parameters of :meth:`.lora.LoRA.trains` have a gradient.

    Args:
        model: a port, or a part of it.
        prefix: the path of ``model`` in the whole model; "" for the whole.
    """
    for name, layer in list(model.named_sublayers()):
        if isinstance(layer, Linear) and lora.adapts(_path(prefix, name)):
            _replace(model, name, LoRALinear(layer, lora))
    for name, parameter in model.named_parameters():
        parameter.stop_gradient = not lora.trains(_path(prefix, name))
    if not prefix:
        model.adapter = lora


def merge(model: Any) -> None:
    """Add the adapter's update to the weights and remove it: the port becomes the plain model that is saved."""
    weights = merged(values_of(model), model.adapter)
    for name, layer in list(model.named_sublayers()):
        if isinstance(layer, LoRALinear):
            value = to_paddle(weights[f"{name}.weight"], "linear")
            layer.weight.set_value(np.ascontiguousarray(value))
            plain = Linear(*layer.weight.shape, bias_attr=False)
            plain.weight, plain.bias = layer.weight, layer.bias
            _replace(model, name, plain)
    model.adapter = None
    for parameter in model.parameters():
        parameter.stop_gradient = False


def _path(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _replace(model: nn.Layer, name: str, layer: nn.Layer) -> None:
    """Replace a layer by another."""
    around, _, attribute = name.rpartition(".")
    owner = dict(model.named_sublayers(include_self=True))[around]
    setattr(owner, attribute, layer)
