"""Low-rank adaptation of the reference's linear maps, from the paper: W0 x + (alpha / r) B A x, W0 frozen (Hu et al.
2021, section 4.1, equation 3). The reference has none of its own; the maps themselves remain the reference's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

#: A module of a layer, not of a head.
OF_A_LAYER = re.compile(r"^.*?\.\d+\.")


def adapt(model: nn.Module, lora: Mapping[str, Any] | None, prefix: str = "") -> None:
    """Add updates to the maps that ``lora`` names (:attr:`toolkit.parity.job.job.Job.lora`), and freeze all parameters
    but the adapter's and those that it names as trained; None changes nothing.

    Args:
        prefix: the path of ``model`` in the whole model; "" for the whole.
    """
    if lora is None:
        return
    for name, module in list(model.named_modules(prefix=prefix)):
        is_target = OF_A_LAYER.search(name) and any(name.endswith(f".{target}") for target in lora["targets"])
        if is_target and isinstance(module, nn.Linear):
            _add_update(module, lora)
    for name, parameter in model.named_parameters(prefix=prefix):
        parameter.requires_grad_(".lora_A." in name or ".lora_B." in name or name in lora["whole"])


def _add_update(module: nn.Linear, lora: Mapping[str, Any]) -> None:
    module.lora_A = nn.Linear(module.in_features, lora["rank"], bias=False, dtype=module.weight.dtype)
    module.lora_B = nn.Linear(lora["rank"], module.out_features, bias=False, dtype=module.weight.dtype)
    scale = lora["alpha"] / lora["rank"]
    plain = module.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(x, lora["dropout"], module.training)
        return plain(x) + module.lora_B(module.lora_A(dropped)) * scale

    module.forward = forward
    module.scale = scale


def initialise(model: nn.Module) -> None:
    """Initialise A from a normal distribution of standard deviation 1/sqrt(its width), B to 0."""
    for module in _adapted(model):
        nn.init.normal_(module.lora_A.weight, std=1 / math.sqrt(module.in_features))
        nn.init.zeros_(module.lora_B.weight)


def merged(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of each weight W0 + (alpha / r) B A."""
    names = {module: name for name, module in model.named_modules()}
    for module in _adapted(model):
        update = module.lora_B.weight @ module.lora_A.weight
        yield f"{names[module]}.weight", module.weight + module.scale * update


def _adapted(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "lora_A")]
