"""The reference's optimizer: AdamW and clipping by torch, weight decay and learning rates by transformers' rules."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import torch
from transformers import get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.measure.updates import sampled


class Optimizer:
    """AdamW over a model's parameters and a schedule of its rate, set up as transformers' Trainer does.

    Args:
        decayed: names of the parameters that weight decay applies to; by default :func:`decayed_parameters`.
    """

    def __init__(
        self, model: torch.nn.Module, settings: TrainingSettings, decayed: Collection[str] | None = None
    ) -> None:
        self.model = model
        self.settings = settings
        decayed = decayed_parameters(model) if decayed is None else decayed
        parameters = dict(model.named_parameters())
        groups = [
            {"params": [parameters[name] for name in parameters if name in decayed]},
            {"params": [parameters[name] for name in parameters if name not in decayed], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
        )
        constant = settings.lr_scheduler == "constant"
        self.schedule = get_scheduler(
            "constant_with_warmup" if constant else settings.lr_scheduler,
            self.adamw,
            num_warmup_steps=math.ceil(settings.max_steps * settings.warmup_ratio),
            num_training_steps=settings.max_steps,
        )

    def rate(self, update: int) -> float:
        """The learning rate of an update, from 1 on."""
        return self.settings.learning_rate * self.schedule.lr_lambdas[0](update - 1)

    def rates(self) -> np.ndarray:
        """Rates of the updates of :func:`toolkit.parity.measure.updates.sampled`: float64 (N,)."""
        return np.array([self.rate(update) for update in sampled(self.settings.max_steps)])

    def update(self, number: int, rounded: bool = False) -> None:
        """Clip the gradients, change the parameters by them, and drop them.

        Args:
            number: of the update, from 1.
            rounded: correct the moments' bias as Paddle's kernel does (see :func:`scale_error`).
        """
        settings = self.settings
        if settings.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        scale = 1 + scale_error(settings.adam_beta1, settings.adam_beta2, number) if rounded else 1.0
        for group in self.adamw.param_groups:
            group["lr"] = self.rate(number) * scale
        self.adamw.step()
        self.adamw.zero_grad()


def decayed_parameters(model: torch.nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to."""
    return [name for name in get_parameter_names(model, [torch.nn.LayerNorm]) if "bias" not in name]


def scale_error(beta1: float, beta2: float, step: int) -> float:
    """Relative error of sqrt(1 - beta2^step) / (1 - beta1^step) if both powers are float32 running products (Kingma and
    Ba 2015, section 2, the last lines).

    Paddle keeps these powers in float32, torch does not. Float32 keeps few digits of 1 - beta2^2 = 0.002, so the second
    update of every parameter is too small by 3.4e-6 of itself.
    """
    powers = []
    for beta in (np.float32(beta1), np.float32(beta2)):
        power = beta
        for _ in range(step - 1):
            power = np.float32(power * beta)
        powers.append(float(power))
    exact = np.sqrt(1 - float(np.float32(beta2)) ** step) / (1 - float(np.float32(beta1)) ** step)
    return float(np.sqrt(1 - powers[1]) / (1 - powers[0]) / exact - 1)
