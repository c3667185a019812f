"""Faults of mixed precision: what should stay in float32 and does not. They are the same for every
model. They are tried in bfloat16 alone: in float64 and float32 no cast can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from toolkit.parity.mutants.fault import Mutant, around

#: Loss scale for float16, which would lose small gradients.
LOSS_SCALE = 2.0**16
#: The lowest score that is still finite when it is rounded to bfloat16.
LOWEST = -3.3e38


def _users(function: Callable) -> list[ModuleType]:
    """Modules of the ports that have imported a function of the operations."""
    loaded = [module for name, module in sorted(sys.modules.items()) if name.startswith("models.")]
    name, home = function.__name__, function.__module__
    return [one for one in loaded if getattr(one, name, None) is function and one.__name__ != home]


def _in_bfloat16(port, function: Callable) -> Callable:
    """Return a function whose input and output tensors are rounded, forward and backward."""

    def rounded(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(rounded, value))
        is_float = isinstance(value, port.paddle.Tensor) and value.is_floating_point()
        return port.ops._Rounded.apply(value) if is_float else value

    return lambda *args, **kwargs: rounded(function(*map(rounded, args), **kwargs))


def _softmax(port):
    """Round scores after the masks, so that the masks stay as they were; and round what comes out."""
    masked, whole = port.ops._masked, _in_bfloat16(port, lambda *results: results)

    def lowered(scores, masks):
        return masked(scores, masks).clip(min=LOWEST).astype("bfloat16").astype(scores.dtype)

    def rounding(function):
        def changed(*args, **kwargs):
            result = function(*args, **kwargs)
            return whole(*result) if isinstance(result, tuple) else whole(result)[0]

        return changed

    softmax, masked_softmax = port.ops.softmax, port.ops.masked_softmax

    def of_masked(scores, **kwargs):
        return softmax(*whole(scores.clip(min=LOWEST)), **kwargs)

    return [
        (port.ops, "_masked", lowered),
        *((module, "masked_softmax", rounding(masked_softmax)) for module in _users(masked_softmax)),
        *((module, "softmax", rounding(of_masked)) for module in _users(softmax)),
    ]


def _layer_norm(port):
    return [(port.ops, "layer_norm", _in_bfloat16(port, port.ops.layer_norm))]


def _loss(port):
    return [(port.losses, "cross_entropies", _in_bfloat16(port, port.losses.cross_entropies))]


def _scaled_loss(port):
    return around(port.trainer.Finetuner, "add_gradients", lambda plain, self, loss: plain(self, loss * LOSS_SCALE))


def _gradients(port):
    """Round the accumulated gradient whenever a micro-batch has added its own."""

    def add(plain, self, loss):
        plain(self, loss)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.set_value(parameter.grad.astype("bfloat16").astype(parameter.dtype))

    return around(port.trainer.Finetuner, "add_gradients", add)


def _master_weights(port):
    """Add updates to weights in bfloat16, which lose those smaller than half a unit of theirs."""

    def step(plain, self):
        plain(self)
        for parameter in self._parameter_list:
            parameter.set_value(parameter.astype("bfloat16").astype(parameter.dtype))

    return around(port.paddle.optimizer.AdamW, "step", step)


_fault = partial(Mutant, dtype="bfloat16")

#: Faults of every model.
PRECISION: tuple[Mutant, ...] = (
    _fault("bfloat16-softmax", "softmax in bfloat16", "probabilities:", _softmax, operation="probabilities:"),
    _fault("bfloat16-layer-norm", "layer norm in bfloat16", "norm", _layer_norm, operation="norm"),
    _fault("bfloat16-loss", "the loss in bfloat16", "loss", _loss, operation="loss"),
    _fault("bfloat16-loss-scaled", "the loss is scaled, its gradients are not unscaled", "accumulated:", _scaled_loss),
    _fault("bfloat16-gradients", "gradients are accumulated in bfloat16", "accumulated:", _gradients),
    _fault("bfloat16-master-weights", "updates are applied to weights in bfloat16", "updated:", _master_weights),
)
