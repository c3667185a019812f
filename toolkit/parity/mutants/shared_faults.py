"""Faults that every family's port can have: in the training loop, an optimizer, the loss, an adapter or bfloat16."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.parity.mutants.fault import Mutant, PortModules, read_faults, wrap_method

#: Lowest score that stays finite when it is rounded to bfloat16.
LOWEST = -3.3e38


def _read_kind(kind: str) -> tuple[Mutant, ...]:
    """Return the mutants of the YAML file of a kind, which is next to this module."""
    return read_faults(Path(__file__).with_name(f"{kind}.yaml"))


def _repeat_third_update(port: PortModules) -> list[tuple[Any, str, Any]]:
    """Apply AdamW's third update twice."""
    counts: dict[int, int] = {}

    def step(plain, self):
        counts[id(self)] = counts.get(id(self), 0) + 1
        plain(self)
        if counts[id(self)] == 3:
            plain(self)

    return wrap_method(port.paddle.optimizer.AdamW, "step", step)


def _round_master_weights(port: PortModules) -> list[tuple[Any, str, Any]]:
    """Round the weights to bfloat16 after each update, which loses updates below half a unit in the last place."""

    def step(plain, self):
        plain(self)
        for parameter in self._parameter_list:
            parameter.set_value(parameter.astype("bfloat16").astype(parameter.dtype))

    return wrap_method(port.paddle.optimizer.AdamW, "step", step)


def _importing_modules(function: Callable) -> list[ModuleType]:
    """Return the modules of the ports that have imported a function of :mod:`models.operations`."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("models.")]
    name, home = function.__name__, function.__module__
    return [module for module in modules if getattr(module, name, None) is function and module.__name__ != home]


def _round_softmax(port: PortModules) -> list[tuple[Any, str, Any]]:
    """Round the masked scores and the results of each softmax to bfloat16."""
    apply_masks, softmax, masked_softmax = port.ops._apply_masks, port.ops.softmax, port.ops.masked_softmax

    def apply_masks_rounded(scores, masks):
        return apply_masks(scores, masks).clip(min=LOWEST).astype("bfloat16").astype(scores.dtype)

    def round_result(function):
        def compute_rounded(*args, **kwargs):
            result = function(*args, **kwargs)
            round_tensor = port.ops._RoundToBfloat16.apply
            return tuple(map(round_tensor, result)) if isinstance(result, tuple) else round_tensor(result)

        return compute_rounded

    def softmax_of_rounded(scores, **kwargs):
        return softmax(port.ops._RoundToBfloat16.apply(scores.clip(min=LOWEST)), **kwargs)

    return [
        (port.ops, "_apply_masks", apply_masks_rounded),
        *((module, "masked_softmax", round_result(masked_softmax)) for module in _importing_modules(masked_softmax)),
        *((module, "softmax", round_result(softmax_of_rounded)) for module in _importing_modules(softmax)),
    ]


#: Faults of an optimizer step.
TRAINING = _read_kind("training")
#: Faults of the training loop.
TRAINER = (
    *_read_kind("trainer"),
    Mutant("trainer-third-update", "the third update is made twice", "#3", _repeat_third_update, kind="trainer"),
)
_OPTIMIZER_FAULTS = _read_kind("optimizers")
#: Faults by optimizer.
OPTIMIZERS = {
    optimizer: tuple(fault for fault in _OPTIMIZER_FAULTS if fault.name.startswith(f"{optimizer}-"))
    for optimizer in ("lion", "sgd", "adafactor")
}
#: Faults of class weights, by ``problem_type`` of the configuration.
CLASS_WEIGHTS = {
    "single_label_classification": _read_kind("class_weights"),
    "multi_label_classification": _read_kind("label_weights"),
}
#: Faults of label smoothing.
LABEL_SMOOTHING = _read_kind("label_smoothing")
#: Faults of an adapter.
LORA = _read_kind("lora")
#: Faults that only bfloat16 shows.
PRECISION = (
    Mutant(
        "bfloat16-softmax",
        "softmax in bfloat16",
        "probabilities:",
        _round_softmax,
        operation="probabilities:",
        dtype="bfloat16",
    ),
    *_read_kind("precision"),
    Mutant(
        "bfloat16-master-weights",
        "updates are applied to weights in bfloat16",
        "updated:",
        _round_master_weights,
        dtype="bfloat16",
    ),
)
