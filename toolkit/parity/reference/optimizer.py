"""The reference's optimizer: AdamW and clipping by torch, what decays by transformers' own rule."""

from __future__ import annotations

import numpy as np
import torch
from transformers.trainer_pt_utils import get_parameter_names

from toolkit.parity.job.job import OptimizerSettings


class Optimizer:
    """AdamW over a model's parameters, set up as transformers' Trainer does."""

    def __init__(self, model: torch.nn.Module, settings: OptimizerSettings) -> None:
        self.model = model
        self.settings = settings
        self.max_grad_norm = settings.max_grad_norm
        decayed = decayed_parameters(model)
        parameters = dict(model.named_parameters())
        groups = [
            {"params": [parameters[name] for name in parameters if name in decayed]},
            {"params": [parameters[name] for name in parameters if name not in decayed], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )

    def update(self, number: int, rounded: bool = False) -> None:
        """Clip the gradients, change the parameters by them, and drop them.

        Args:
            number: of the update, from 1.
            rounded: correct the moments' bias as Paddle's kernel does (see :func:`scale_error`).
        """
        if self.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        settings = self.settings
        scale = 1 + scale_error(settings.beta1, settings.beta2, number) if rounded else 1.0
        for group in self.adamw.param_groups:
            group["lr"] = settings.learning_rate * scale
        self.adamw.step()
        self.adamw.zero_grad()


def decayed_parameters(model: torch.nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to."""
    return [name for name in get_parameter_names(model, [torch.nn.LayerNorm]) if "bias" not in name]


def scale_error(beta1: float, beta2: float, step: int) -> float:
    """By how much sqrt(1 - beta2^step) / (1 - beta1^step) is off, relatively, if both powers are multiplied up in
    float32 (Kingma and Ba 2015, section 2, the last lines).

    Paddle keeps these powers in float32, torch does not. Of 1 - beta2^2 = 0.002 float32 has few digits left, and the
    second update of all parameters alike is too small by 3.4e-6 of itself.
    """
    powers = []
    for beta in (np.float32(beta1), np.float32(beta2)):
        power = beta
        for _ in range(step - 1):
            power = np.float32(power * beta)
        powers.append(float(power))
    exact = np.sqrt(1 - float(np.float32(beta2)) ** step) / (1 - float(np.float32(beta1)) ** step)
    return float(np.sqrt(1 - powers[1]) / (1 - powers[0]) / exact - 1)
