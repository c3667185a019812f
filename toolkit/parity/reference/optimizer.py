"""The reference's optimizer: AdamW and clipping by torch, what decays by transformers' own rule."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers.trainer_pt_utils import get_parameter_names


class Optimizer:
    """AdamW over a model's parameters, set up as transformers' Trainer does.

    Args:
        settings: ``learning_rate``, ``weight_decay``, ``beta1``, ``beta2``, ``epsilon``, ``max_grad_norm``.
    """

    def __init__(self, model: torch.nn.Module, settings: Mapping[str, float | None]) -> None:
        self.model = model
        self.max_grad_norm = settings["max_grad_norm"]
        decayed = {name for name in get_parameter_names(model, [torch.nn.LayerNorm]) if "bias" not in name}
        parameters = dict(model.named_parameters())
        groups = [
            {"params": [parameters[name] for name in parameters if name in decayed]},
            {"params": [parameters[name] for name in parameters if name not in decayed], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            groups,
            lr=settings["learning_rate"],
            betas=(settings["beta1"], settings["beta2"]),
            eps=settings["epsilon"],
            weight_decay=settings["weight_decay"],
        )

    def update(self) -> None:
        """Clip the gradients, change the parameters by them, and drop them."""
        if self.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.adamw.step()
        self.adamw.zero_grad()
