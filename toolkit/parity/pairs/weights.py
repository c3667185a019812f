"""Weights for a user's model that do not hide a fault, of the kinds of :mod:`toolkit.parity.inputs.synthetic`.

The role of a parameter follows from its initial values: if all are equal, it is a norm's gain or a bias. A matrix keeps
the spread of its initial values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from models.port.weights import make_generator
from toolkit.parity.inputs.synthetic import KINDS, make_students_t, randomize_constants
from toolkit.parity.job.pair import ParameterFacts

#: Layers whose matrices ``large-gains`` makes wider.
MAPS = ("linear", "conv")


def make_weights(
    parameters: Iterable[ParameterFacts], values: Mapping[str, np.ndarray], kind: str, seed: int
) -> dict[str, np.ndarray]:
    """Make weights of a kind, float32 by name.

    Args:
        parameters: parameters of the reference.
        values: initial values from the reference's ``build``, by name.
        kind: ``random``: the initial values, with constant parameters randomized. ``heavy-tailed``: matrices twice as
            wide, with Student's t with 3 degrees of freedom. ``large-gains``: norm gains with standard deviation 8,
            linear maps and convolutions four times as wide.
        seed: seed of the draws.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    randomized_values, _ = randomize_constants(values, seed)
    if kind == "random":
        return randomized_values
    return {
        one.name: _make_parameter(one, np.asarray(values[one.name]), randomized_values[one.name], kind, seed)
        for one in parameters
    }


def _make_parameter(
    parameter: ParameterFacts, value: np.ndarray, randomized_value: np.ndarray, kind: str, seed: int
) -> np.ndarray:
    """Return random values for a parameter, to test the port at weights other than the initial weights.

    Args:
        parameter: name, shape and role of the parameter.
        value: initial value of the parameter.
        randomized_value: value that is used for vectors other than gains, and whose spread matrices keep.
        kind: kind of the weights, such as ``heavy-tailed`` or ``large-gains``.
        seed: seed of the random numbers.
    """
    draw = make_generator(seed, f"{kind}:{parameter.name}")
    normal = draw.standard_normal(value.shape, np.float32)
    if value.ndim < 2:
        is_gain = value.size > 1 and value.any() and bool((value == value.flat[0]).all())
        if is_gain:
            return np.float32(8.0) * normal if kind == "large-gains" else value + np.float32(0.2) * normal
        return randomized_value
    new_value = np.float32(randomized_value.std()) * normal
    if kind == "heavy-tailed":
        new_value *= np.float32(2.0)
        make_students_t(new_value.reshape(-1), draw)
    elif parameter.role in MAPS:
        new_value *= np.float32(4.0)
    return np.where(randomized_value == 0, randomized_value, new_value)  # a padding token's row stays zero
