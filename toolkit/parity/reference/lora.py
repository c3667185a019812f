"""Low-rank adaptation (LoRA) of the reference's linear layers: W0 x + (alpha / r) B A x, with frozen W0.

A (r, in) and B (out, r) are trained, and alpha is a constant. This is equation 3 of Hu et al. 2021, section 4.1. The
reference has no LoRA, but its linear layers remain in use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

#: Matches the path of a module inside a numbered layer, such as ``encoder.layers.3.``, and no module of a head.
LAYER_MODULE = re.compile(r"^.*?\.\d+\.")


def adapt_model(model: nn.Module, lora: Mapping[str, Any] | None, prefix: str = "") -> None:
    """Add LoRA adapters to a model's linear layers, and freeze all other parameters, in place.

    Args:
        model: the model, or a part of it.
        lora: settings of the adapters, with the names of the layers and of other trained parameters
            (:attr:`toolkit.parity.job.job.Job.lora`); None changes nothing.
        prefix: dotted path of ``model`` in the whole model; empty for the whole model.
    """
    if lora is None:
        return
    for name, module in list(model.named_modules(prefix=prefix)):
        is_target = LAYER_MODULE.search(name) and any(name.endswith(f".{target}") for target in lora["targets"])
        if is_target and isinstance(module, nn.Linear):
            _add_update(module, lora)
    for name, parameter in model.named_parameters(prefix=prefix):
        parameter.requires_grad_(".lora_A." in name or ".lora_B." in name or name in lora["whole"])


def _add_update(linear: nn.Linear, lora: Mapping[str, Any]) -> None:
    """Add the matrices A and B to a linear layer, and their product to its forward."""
    linear.lora_A = nn.Linear(linear.in_features, lora["rank"], bias=False, dtype=linear.weight.dtype)
    linear.lora_B = nn.Linear(lora["rank"], linear.out_features, bias=False, dtype=linear.weight.dtype)
    scale = lora["alpha"] / lora["rank"]
    plain_forward = linear.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        dropout_x = nn.functional.dropout(x, lora["dropout"], linear.training)
        return plain_forward(x) + linear.lora_B(linear.lora_A(dropout_x)) * scale

    linear.forward = forward
    linear.scale = scale


def initialize_adapters(model: nn.Module) -> None:
    """Initialize the LoRA adapters of a model in place.

    A is drawn from a normal distribution with standard deviation 1 / sqrt(in_features), and B is 0.
    """
    for module in _adapted_modules(model):
        nn.init.normal_(module.lora_A.weight, std=1 / math.sqrt(module.in_features))
        nn.init.zeros_(module.lora_B.weight)


def merge_adapters(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameter name and the merged weight W0 + (alpha / r) B A of each adapted linear layer."""
    names = {module: name for name, module in model.named_modules()}
    for module in _adapted_modules(model):
        update = module.lora_B.weight @ module.lora_A.weight
        yield f"{names[module]}.weight", module.weight + module.scale * update


def _adapted_modules(model: nn.Module) -> list[Any]:
    """Return the linear layers of a model that have a LoRA adapter."""
    return [module for module in model.modules() if hasattr(module, "lora_A")]
