"""The losses after an update: how far float32 may take them, beside what perturbed runs of the reference show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def allowance(name: str, reference: Mapping[str, Any], dtype: str) -> float:
    """What the bias correction of Adam costs a loss in float32; 0 for all other tensors.

    Paddle keeps the powers of beta in float32, torch does not. Of 1 - beta2^2 = 0.002 float32 has few digits left, and
    the second update of all parameters alike is too small by 3.4e-6 of itself, which no single parameter shows and the
    loss does. To first order each update's share in the loss is off by as much; twice that is allowed.

    Args:
        name: ``loss#3`` is the loss after two updates.
        reference: its result, with ``tensors`` and the ``betas`` among its ``facts``.
    """
    betas = reference["facts"].get("betas")
    if dtype != "float32" or not name.startswith("loss#") or betas is None:
        return 0.0
    updates = int(name.removeprefix("loss#")) - 1
    losses = [reference["tensors"][_loss(number)]["rms"] for number in range(1, updates + 2)]
    changes = np.abs(np.diff(losses))
    return float(2 * sum(abs(scale_error(*betas, step + 1)) * change for step, change in enumerate(changes)))


def scale_error(beta1: float, beta2: float, step: int) -> float:
    """By how much sqrt(1 - beta2^step) / (1 - beta1^step) is off, relatively, if both powers are multiplied up in
    float32 (Kingma and Ba 2015, section 2, the last lines)."""
    powers = []
    for beta in (np.float32(beta1), np.float32(beta2)):
        power = beta
        for _ in range(step - 1):
            power = np.float32(power * beta)
        powers.append(float(power))
    exact = np.sqrt(1 - float(np.float32(beta2)) ** step) / (1 - float(np.float32(beta1)) ** step)
    return float(np.sqrt(1 - powers[1]) / (1 - powers[0]) / exact - 1)


def _loss(number: int) -> str:
    return "loss" if number == 1 else f"loss#{number}"
