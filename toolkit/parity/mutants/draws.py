"""Faults of a port's own random draws that are more than an edit of one function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from toolkit.parity.mutants.fault import Modules, Mutant, around, read_faults


def mask_faults(prefix: str, family: str, body: Callable[[Modules], type]) -> tuple[Mutant, ...]:
    """Return the faults of masks that every family may have.

    Args:
        prefix: begins all names.
        body: takes the modules and gives the class of the model without its head.
    """
    of_layers = Mutant(
        f"{prefix}own-masks-every-layer",
        "the port's own masks are the same in every layer",
        "dropout:",
        lambda port: _repeat_in_every_layer(port, body(port)),
        family,
        draws=True,
        kind="draws",
    )
    return (*read_faults(Path(__file__).with_name("draws.yaml"), prefix), of_layers)


def _repeat_in_every_layer(port: Modules, body: type) -> list[tuple[Any, str, Any]]:
    """Draw all masks of a step from the state at its beginning; each step begins with another."""
    begun = SimpleNamespace()

    def forward(original, self, *args, **kwargs):
        begun.state = port.paddle.get_rng_state()
        return original(self, *args, **kwargs)

    def kept(original, self, p, shape):
        now = port.paddle.get_rng_state()
        port.paddle.set_rng_state(begun.state)
        mask = original(self, p, shape)
        port.paddle.set_rng_state(now)
        port.paddle.randint(0, 2, [1])
        return mask

    return around(body, "forward", forward) + around(port.randomness.Generator, "kept", kept)
