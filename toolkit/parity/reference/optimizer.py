"""The reference's optimizer: by torch, but Lion; clipping by torch, weight decay and learning rates by transformers'
rules."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from transformers import get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.measure.updates import pick_updates


class Optimizer:
    """A run's optimizer over a model's parameters and a schedule of its rate, set up as transformers' Trainer does.
    Weight decay applies to the parameters named in ``decayed``; by default :func:`decayed_parameters`."""

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
        self.optimizer = made(groups, settings)
        constant = settings.lr_scheduler == "constant"
        self.schedule = get_scheduler(
            "constant_with_warmup" if constant else settings.lr_scheduler,
            self.optimizer,
            num_warmup_steps=math.ceil(settings.max_steps * settings.warmup_ratio),
            num_training_steps=settings.max_steps,
        )

    def rate(self, update: int) -> float:
        """The learning rate of an update, from 1 on."""
        return self.settings.learning_rate * self.schedule.lr_lambdas[0](update - 1)

    def rates(self) -> np.ndarray:
        """Rates of the updates of :func:`toolkit.parity.measure.updates.pick_updates`: float64 (N,)."""
        return np.array([self.rate(update) for update in pick_updates(self.settings.max_steps)])

    def update(self, number: int, rounded: bool = False) -> None:
        """Clip the gradients, change the parameters by them, and drop them.

        Args:
            number: of the update, from 1.
            rounded: correct AdamW's moments' bias as Paddle's kernel does (see :func:`scale_error`).
        """
        settings = self.settings
        if settings.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        betas = settings.adam_beta1 or 0.0, settings.adam_beta2 or 0.0
        scale = 1 + scale_error(*betas, number) if rounded and settings.optimizer == "adamw" else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number) * scale
        self.optimizer.step()
        self.optimizer.zero_grad()

    def moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Lion's moment of each parameter that has one, by its name: the parameters show its sign alone."""
        for name, parameter in self.model.named_parameters():
            if parameter in self.optimizer.state and isinstance(self.optimizer, Lion):
                yield name, self.optimizer.state[parameter]["moment"]


def made(groups: list[Any], settings: TrainingSettings) -> torch.optim.Optimizer:
    """An optimizer of parameters in groups. Raises RuntimeError if this torch has none of its kind."""
    given: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    betas = (settings.adam_beta1, settings.adam_beta2)
    if settings.optimizer == "lion":
        return Lion(groups, {**given, "betas": betas})
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, **given)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=betas, eps=settings.adam_epsilon, **given)
    if not hasattr(torch.optim, "Adafactor"):
        raise RuntimeError(f"the reference's torch is {torch.__version__}; train.optimizer adafactor needs torch 2.5")
    # torch's defaults in float32, in float64 too: both compute one function.
    return torch.optim.Adafactor(groups, eps=(torch.finfo(torch.float32).eps, 1e-3), **given)


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, algorithm 2), line by line. torch has none."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            rate, decay, (beta1, beta2) = group["lr"], group["weight_decay"], group["betas"]
            for theta in (parameter for parameter in group["params"] if parameter.grad is not None):
                m = self.state[theta].setdefault("moment", torch.zeros_like(theta))
                c = beta1 * m + (1 - beta1) * theta.grad
                theta.sub_(rate * (torch.sign(c) + decay * theta))
                m.copy_(beta2 * m + (1 - beta2) * theta.grad)


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
