"""Faults of randomly initialized weights. A step never shows them, since the gate gives both sides the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from toolkit.parity.mutants.fault import Mutant, PortModules

#: Maps a configuration and the standard deviation of each role to other standard deviations.
WidthChange = Callable[[Mapping[str, Any], dict[str, float]], dict[str, float]]
#: Maps the initial values of a parameter to other values.
ValueChange = Callable[[np.ndarray], np.ndarray]
#: Owners, names and values of the attributes that a fault sets.
AttributeValues = list[tuple[Any, str, Any]]


def change_widths(change: WidthChange) -> Callable[[PortModules], AttributeValues]:
    """Return a fault that changes the standard deviations of all roles."""

    def apply(port: PortModules) -> AttributeValues:
        standard_deviations = port.weights.standard_deviations
        return [(port.weights, "standard_deviations", lambda config: change(config, standard_deviations(config)))]

    return apply


def change_width(
    role: str, compute_width: Callable[[dict[str, float]], float]
) -> Callable[[PortModules], AttributeValues]:
    """Return a fault that computes one role's standard deviation from the correct values of all roles."""
    return change_widths(lambda config, widths: {**widths, role: compute_width(widths)})


def _replace_values(role: str, change_value: ValueChange) -> Callable[[PortModules], AttributeValues]:
    """Return a fault that applies ``change_value`` to the initial values of each parameter of a role."""

    def apply(port: PortModules) -> AttributeValues:
        initial_weights, parameters = port.weights.initial_weights, port.weights.parameters

        def change_role(config: Mapping[str, Any], head: str, seed: int) -> dict[str, np.ndarray]:
            table = parameters(config, head)
            weights = initial_weights(config, head, seed)
            return {name: change_value(value) if table[name].role == role else value for name, value in weights.items()}

        return [(port.weights, "initial_weights", change_role)]

    return apply


def _seed_generator(value: np.ndarray) -> np.random.Generator:
    """Return a generator whose seed is the bits of the parameter's first value, in float32."""
    return np.random.default_rng(value.view(np.uint32).flat[0])


def _draw_uniform(value: np.ndarray) -> np.ndarray:
    """Return uniform numbers with the standard deviation of an initial weight, instead of normal numbers."""
    return (_seed_generator(value).uniform(-1, 1, value.shape) * 3**0.5 * value.std()).astype(np.float32)


def _draw_truncated(value: np.ndarray) -> np.ndarray:
    """Draw the values beyond two standard deviations again."""
    generator, deviation, value = _seed_generator(value), value.std(), value.copy()
    while (is_far := np.abs(value) > 2 * deviation).any():
        value[is_far] = deviation * generator.standard_normal(is_far.sum(), np.float32)
    return value


def _shift_mean(value: np.ndarray) -> np.ndarray:
    """Return an initial weight whose mean is shifted by a quarter of its standard deviation."""
    return value + np.float32(0.25) * value.std()


def initialization_fault(
    family: str, name: str, description: str, culprit: str, apply: Callable[[PortModules], AttributeValues]
) -> Mutant:
    """Return a fault of a family's randomly initialized weights.

    Args:
        family: name of the model family.
        name: end of the fault's name.
        description: description of the fault in a few words.
        culprit: text that the name of the culprit must contain.
        apply: function that returns the attributes to set, as :attr:`.Mutant.apply` does.
    """
    return Mutant(
        f"{family}-new-{name}", description, culprit, apply, family, initialization=True, kind="initialisation"
    )


def initialization_faults(
    family: str, embedding_name: str, linear_name: str, bias_name: str, norm_name: str
) -> tuple[Mutant, ...]:
    """Return the faults of the randomly initialized weights of a family.

    Args:
        family: name of the model family.
        embedding_name: part of the name of the first embedding.
        linear_name: part of the name of the first weight of a linear map.
        bias_name: part of the name of the first bias.
        norm_name: part of the name of the first gain of a norm.
    """

    fault = partial(initialization_fault, family)

    return (
        fault(
            "twice-as-wide",
            "linear maps twice as wide",
            linear_name,
            change_width("linear", lambda widths: 2 * widths["linear"]),
        ),
        fault(
            "embedding-unit-width",
            "the frameworks' own width for embeddings",
            embedding_name,
            change_width("embedding", lambda widths: 1.0),
        ),
        fault(
            "biases-drawn",
            "biases drawn as matrices are",
            bias_name,
            change_width("bias", lambda widths: widths["linear"]),
        ),
        fault("gains-zero", "norm gains of 0", norm_name, _replace_values("norm_gain", np.zeros_like)),
        fault(
            "uniform",
            "embeddings uniform, of the same spread",
            embedding_name,
            _replace_values("embedding", _draw_uniform),
        ),
        fault(
            "truncated",
            "embeddings truncated at two deviations",
            embedding_name,
            _replace_values("embedding", _draw_truncated),
        ),
        fault(
            "mean-shifted",
            "linear maps with a mean of a quarter deviation",
            linear_name,
            _replace_values("linear", _shift_mean),
        ),
    )
