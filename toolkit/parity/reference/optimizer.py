"""The reference's optimizer: torch's, or Lion by its paper, with torch's clipping.

Weight decay and learning rates follow the rules of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.measure.updates import pick_updates


class Optimizer:
    """A run's optimizer and its learning-rate schedule, created as transformers' Trainer does.

    Args:
        model: the model with the parameters to update.
        settings: settings of the run's updates.
        decayed_names: names of the parameters with weight decay; None for the names in :func:`decayed_parameters`.
    """

    def __init__(
        self, model: nn.Module, settings: TrainingSettings, decayed_names: Collection[str] | None = None
    ) -> None:
        self.model = model
        self.settings = settings
        decayed_names = decayed_parameters(model) if decayed_names is None else decayed_names
        parameters = dict(model.named_parameters())
        groups = [
            {"params": [parameters[name] for name in parameters if name in decayed_names]},
            {"params": [parameters[name] for name in parameters if name not in decayed_names], "weight_decay": 0.0},
        ]
        self.optimizer = make_optimizer(groups, settings)
        is_constant = settings.lr_scheduler == "constant"
        self.schedule = get_scheduler(
            "constant_with_warmup" if is_constant else settings.lr_scheduler,
            self.optimizer,
            num_warmup_steps=math.ceil(settings.max_steps * settings.warmup_ratio),
            num_training_steps=settings.max_steps,
        )

    def rate(self, update: int) -> float:
        """Return the learning rate of an update, whose number is counted from 1."""
        return self.settings.learning_rate * self.schedule.lr_lambdas[0](update - 1)

    def rates(self) -> np.ndarray:
        """Return the learning rates of the compared updates (:func:`.updates.pick_updates`), float64 (N,)."""
        return np.array([self.rate(update) for update in pick_updates(self.settings.max_steps)])

    def update(self, number: int, has_float32_powers: bool = False) -> None:
        """Clip the gradients, update the parameters, and free the gradients.

        Args:
            number: number of the update, counted from 1.
            has_float32_powers: whether the bias of AdamW's moments is corrected as by Paddle's kernel, which keeps the
                powers of the betas in float32 (see :func:`scale_error`).
        """
        settings = self.settings
        if settings.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        betas = settings.adam_beta1 or 0.0, settings.adam_beta2 or 0.0
        scale = 1 + scale_error(*betas, number) if has_float32_powers and settings.optimizer == "adamw" else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number) * scale
        self.optimizer.step()
        self.optimizer.zero_grad()

    def moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name of each parameter with Lion's moment, and the moment; nothing for other optimizers.

        The updated parameters show only the moment's sign.
        """
        for name, parameter in self.model.named_parameters():
            if parameter in self.optimizer.state and isinstance(self.optimizer, Lion):
                yield name, self.optimizer.state[parameter]["moment"]


def make_optimizer(groups: list[Any], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return a new optimizer of the kind that the settings name.

    Args:
        groups: parameter groups of the optimizer, as for ``torch.optim``.
        settings: settings of the run's updates.

    Raises:
        RuntimeError: this version of torch lacks Adafactor.
    """
    options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    betas = (settings.adam_beta1, settings.adam_beta2)
    if settings.optimizer == "lion":
        return Lion(groups, {**options, "betas": betas})
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, **options)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=betas, eps=settings.adam_epsilon, **options)
    if not hasattr(torch.optim, "Adafactor"):
        raise RuntimeError(f"the reference's torch is {torch.__version__}; train.optimizer adafactor needs torch 2.5")
    # The default epsilons of float32 in both dtypes, so that both compute the same function.
    return torch.optim.Adafactor(groups, eps=(torch.finfo(torch.float32).eps, 1e-3), **options)


class Lion(torch.optim.Optimizer):
    """The optimizer Lion, line by line as algorithm 2 of Chen et al. 2023, since torch lacks it."""

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters once by Lion's rule."""
        for group in self.param_groups:
            rate, decay, (beta1, beta2) = group["lr"], group["weight_decay"], group["betas"]
            for theta in (parameter for parameter in group["params"] if parameter.grad is not None):
                m = self.state[theta].setdefault("moment", torch.zeros_like(theta))
                c = beta1 * m + (1 - beta1) * theta.grad
                theta.sub_(rate * (torch.sign(c) + decay * theta))
                m.copy_(beta2 * m + (1 - beta2) * theta.grad)


def decayed_parameters(model: nn.Module) -> list[str]:
    """Return the names of a model's parameters with weight decay, as transformers' Trainer selects them."""
    return [name for name in get_parameter_names(model, [torch.nn.LayerNorm]) if "bias" not in name]


def scale_error(beta1: float, beta2: float, step: int) -> float:
    """Return the relative error of Adam's factor sqrt(1 - beta2^step) / (1 - beta1^step) with powers in float32.

    Paddle keeps the powers as running products in float32, and torch does not (Kingma and Ba 2015, end of section 2).
    Float32 keeps few digits of 1 - beta2^2 = 0.002, so the second update of each parameter is too small by 3.4e-6.

    Args:
        beta1: decay rate of the first moment.
        beta2: decay rate of the second moment.
        step: number of the update, counted from 1.
    """
    powers = []
    for beta in (np.float32(beta1), np.float32(beta2)):
        power = beta
        for _ in range(step - 1):
            power = np.float32(power * beta)
        powers.append(float(power))
    exact = np.sqrt(1 - float(np.float32(beta2)) ** step) / (1 - float(np.float32(beta1)) ** step)
    return float(np.sqrt(1 - powers[1]) / (1 - powers[0]) / exact - 1)
