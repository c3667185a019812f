"""Faults of a port's own random draws that are more than an edit of one function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from toolkit.parity.mutants.fault import Mutant, PortModules, read_faults, wrap_method


def mask_faults(prefix: str, family: str, body: Callable[[PortModules], type]) -> tuple[Mutant, ...]:
    """Return the faults of dropout masks that every family can have.

    Args:
        prefix: text at the beginning of each fault's name.
        family: name of the model family.
        body: function that returns the class of the model without its head.
    """
    same_masks = Mutant(
        f"{prefix}own-masks-every-layer",
        "the port's own masks are the same in every layer",
        "dropout:",
        lambda port: _repeat_in_every_layer(port, body(port)),
        family,
        draws=True,
        kind="draws",
    )
    return (*read_faults(Path(__file__).with_name("draws.yaml"), prefix), same_masks)


def _repeat_in_every_layer(port: PortModules, body: type) -> list[tuple[Any, str, Any]]:
    """Return the replacements of a fault that draws the same dropout mask in every layer.

    Each mask is drawn from the generator's state at the beginning of the step. Afterwards the state is advanced, so
    that the next step draws others.

    Args:
        port: modules of the port.
        body: class of the model's body.

    Returns:
        Owner, name of the function, and replacement, for each replaced function.
    """
    step = SimpleNamespace()

    def forward(original, self, *args, **kwargs):
        step.initial_state = port.paddle.get_rng_state()
        return original(self, *args, **kwargs)

    def draw_mask(original, self, p, shape):
        current_state = port.paddle.get_rng_state()
        port.paddle.set_rng_state(step.initial_state)
        mask = original(self, p, shape)
        port.paddle.set_rng_state(current_state)
        port.paddle.randint(0, 2, [1])
        return mask

    return wrap_method(body, "forward", forward) + wrap_method(port.randomness.Generator, "draw_mask", draw_mask)
