"""The parameters and losses after an update: what float32 may cost them beside what runs of the reference show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def allowance(name: str, reference: Mapping[str, Any], dtype: str) -> float:
    """What the bias correction of Adam costs parameters and losses in float32; 0 for all other tensors.

    Paddle keeps the powers of beta in float32, torch does not. Of 1 - beta2^2 = 0.002 float32 has few digits left, and
    the second update of all parameters alike is too small by 3.4e-6 of itself. To first order each update's share in a
    loss is off by as much; twice that is allowed.

    Args:
        name: ``updated:NAME#2`` is a parameter, ``loss#3`` the loss after two updates.
        reference: its result, with ``tensors`` and the settings of the ``optimizer`` among its ``facts``.
    """
    settings = reference["facts"].get("optimizer")
    kind, _, number = name.partition("#")
    if dtype != "float32" or settings is None or not ((kind == "loss" and number) or kind.startswith("updated:")):
        return 0.0
    if kind == "loss":
        losses = [reference["tensors"][_loss(each)]["rms"] for each in range(1, int(number) + 1)]
        changes = np.abs(np.diff(losses))
    else:
        changes = [settings["learning_rate"]] * int(number or 1)  # about the most that Adam moves a parameter by
    errors = (abs(scale_error(settings["beta1"], settings["beta2"], step + 1)) for step in range(len(changes)))
    return float(2 * sum(error * change for error, change in zip(errors, changes, strict=True)))


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
