"""Faults that every family's port may have: of the training loop and its optimizers, of the loss, of an adapter, of
mixed precision."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.parity.mutants.fault import Modules, Mutant, around, read_faults

#: The lowest score that is still finite when it is rounded to bfloat16.
LOWEST = -3.3e38


def _read_kind(kind: str) -> tuple[Mutant, ...]:
    return read_faults(Path(__file__).with_name(f"{kind}.yaml"))


def _third_update_doubled(port: Modules) -> list[tuple[Any, str, Any]]:
    """Make AdamW's third step twice."""
    counts: dict[int, int] = {}

    def step(plain, self):
        counts[id(self)] = counts.get(id(self), 0) + 1
        plain(self)
        if counts[id(self)] == 3:
            plain(self)

    return around(port.paddle.optimizer.AdamW, "step", step)


def _master_weights_in_bfloat16(port: Modules) -> list[tuple[Any, str, Any]]:
    """Add updates to weights in bfloat16, which lose those smaller than half a unit of theirs."""

    def step(plain, self):
        plain(self)
        for parameter in self._parameter_list:
            parameter.set_value(parameter.astype("bfloat16").astype(parameter.dtype))

    return around(port.paddle.optimizer.AdamW, "step", step)


def _importing_modules(function: Callable) -> list[ModuleType]:
    """Return the modules of the ports that have imported a function of the operations."""
    loaded = [module for name, module in sorted(sys.modules.items()) if name.startswith("models.")]
    name, home = function.__name__, function.__module__
    return [one for one in loaded if getattr(one, name, None) is function and one.__name__ != home]


def _softmax_in_bfloat16(port: Modules) -> list[tuple[Any, str, Any]]:
    """Round scores after the masks, so that the masks stay as they were; and round the results."""
    masked, softmax, masked_softmax = port.ops._masked, port.ops.softmax, port.ops.masked_softmax

    def lowered(scores, masks):
        return masked(scores, masks).clip(min=LOWEST).astype("bfloat16").astype(scores.dtype)

    def rounding(function):
        def changed(*args, **kwargs):
            result = function(*args, **kwargs)
            rounded = port.ops._Rounded.apply
            return tuple(map(rounded, result)) if isinstance(result, tuple) else rounded(result)

        return changed

    def of_rounded(scores, **kwargs):
        return softmax(port.ops._Rounded.apply(scores.clip(min=LOWEST)), **kwargs)

    return [
        (port.ops, "_masked", lowered),
        *((module, "masked_softmax", rounding(masked_softmax)) for module in _importing_modules(masked_softmax)),
        *((module, "softmax", rounding(of_rounded)) for module in _importing_modules(softmax)),
    ]


#: Faults of the optimizer step.
TRAINING = _read_kind("training")
#: Faults of the loop around it.
TRAINER = (
    *_read_kind("trainer"),
    Mutant("trainer-third-update", "the third update is made twice", "#3", _third_update_doubled, kind="trainer"),
)
_OF_OPTIMIZERS = _read_kind("optimizers")
#: Faults by the optimizer.
OPTIMIZERS = {
    optimizer: tuple(fault for fault in _OF_OPTIMIZERS if fault.name.startswith(f"{optimizer}-"))
    for optimizer in ("lion", "sgd", "adafactor")
}
#: Faults by the configuration's ``problem_type``.
CLASS_WEIGHTS = {
    "single_label_classification": _read_kind("class_weights"),
    "multi_label_classification": _read_kind("label_weights"),
}
LABEL_SMOOTHING = _read_kind("label_smoothing")
#: Faults of an adapter.
LORA = _read_kind("lora")
#: Faults in bfloat16.
PRECISION = (
    Mutant(
        "bfloat16-softmax",
        "softmax in bfloat16",
        "probabilities:",
        _softmax_in_bfloat16,
        operation="probabilities:",
        dtype="bfloat16",
    ),
    *_read_kind("precision"),
    Mutant(
        "bfloat16-master-weights",
        "updates are applied to weights in bfloat16",
        "updated:",
        _master_weights_in_bfloat16,
        dtype="bfloat16",
    ),
)
