"""Faults of new weights. The step never shows them: both sides get the same weights, wherever these are from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from toolkit.parity.mutants.fault import Modules, Mutant

#: Maps a configuration and the width of each role to other widths.
Widths = Callable[[Mapping[str, Any], dict[str, float]], dict[str, float]]
#: Maps the values of a parameter to others.
Values = Callable[[np.ndarray], np.ndarray]
Changes = list[tuple[Any, str, Any]]


def widths_of(change: Widths) -> Callable[[Modules], Changes]:
    """Draw roles with the widths that ``change`` gives."""

    def apply(port: Modules) -> Changes:
        deviations = port.weights.deviations
        return [(port.weights, "deviations", lambda config: change(config, deviations(config)))]

    return apply


def width_of(role: str, change: Callable[[dict[str, float]], float]) -> Callable[[Modules], Changes]:
    """Draw a role with the width that ``change`` gives, given the widths of all."""
    return widths_of(lambda config, widths: {**widths, role: change(widths)})


def _values(role: str, change: Values) -> Callable[[Modules], Changes]:
    """Replace new parameters of a role by what ``change`` makes of them."""

    def apply(port: Modules) -> Changes:
        initial_weights, parameters = port.weights.initial_weights, port.weights.parameters

        def changed(config: Mapping[str, Any], head: str, seed: int) -> dict[str, np.ndarray]:
            table = parameters(config, head)
            made = initial_weights(config, head, seed)
            return {name: change(value) if table[name].role == role else value for name, value in made.items()}

        return [(port.weights, "initial_weights", changed)]

    return apply


def _draw(value: np.ndarray) -> np.random.Generator:
    """Return a generator that differs for every parameter and seed."""
    return np.random.default_rng(value.view(np.uint32).flat[0])


def _uniform(value: np.ndarray) -> np.ndarray:
    return (_draw(value).uniform(-1, 1, value.shape) * 3**0.5 * value.std()).astype(np.float32)


def _truncated(value: np.ndarray) -> np.ndarray:
    """Draw again what lies more than two standard deviations out."""
    draw, width, value = _draw(value), value.std(), value.copy()
    while (far := np.abs(value) > 2 * width).any():
        value[far] = width * draw.standard_normal(far.sum(), np.float32)
    return value


def _shifted(value: np.ndarray) -> np.ndarray:
    return value + np.float32(0.25) * value.std()


def named(family: str, name: str, what: str, expected: str, apply: Callable[[Modules], Changes]) -> Mutant:
    """Return a fault of a family's new weights."""
    return Mutant(f"{family}-new-{name}", what, expected, apply, family, initialisation=True, kind="initialisation")


def faults(family: str, embedding: str, linear: str, bias: str, norm: str) -> tuple[Mutant, ...]:
    """Return the faults of a family, given the first parameter of each role, or its module."""

    fault = partial(named, family)

    return (
        fault("twice-as-wide", "linear maps twice as wide", linear, width_of("linear", lambda own: 2 * own["linear"])),
        fault(
            "embedding-unit-width",
            "the frameworks' own width for embeddings",
            embedding,
            width_of("embedding", lambda own: 1.0),
        ),
        fault("biases-drawn", "biases drawn as matrices are", bias, width_of("bias", lambda own: own["linear"])),
        fault("gains-zero", "norm gains of 0", norm, _values("norm_gain", np.zeros_like)),
        fault("uniform", "embeddings uniform, of the same spread", embedding, _values("embedding", _uniform)),
        fault("truncated", "embeddings truncated at two deviations", embedding, _values("embedding", _truncated)),
        fault("mean-shifted", "linear maps with a mean of a quarter deviation", linear, _values("linear", _shifted)),
    )
