"""Weights for a user's model on which a fault cannot hide, of the kinds of :mod:`toolkit.parity.job.synthetic`.

A parameter's first values say what it is for: if all are equal, it is a norm's gain or a bias. The spread of a matrix
is the one that the model is made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from models.port.weights import generator
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.job.synthetic import KINDS, make_students_t, randomize_constants

#: Layers whose matrices ``large-gains`` makes wider.
MAPS = ("linear", "conv")


def made_up(
    parameters: Iterable[ParameterFacts], values: Mapping[str, np.ndarray], kind: str, seed: int
) -> dict[str, np.ndarray]:
    """Make weights of a kind, float32 by name.

    Args:
        parameters: of the reference.
        values: values that its ``build`` has made.
        kind: ``random``: these, with constant ones randomized. ``heavy-tailed``: matrices twice as wide, after
            Student's t with 3 degrees of freedom. ``large-gains``: norm gains of standard deviation 8, linear maps and
            convolutions four times as wide.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    given, _ = randomize_constants(values, seed)
    if kind == "random":
        return given
    return {one.name: _made(one, np.asarray(values[one.name]), given[one.name], kind, seed) for one in parameters}


def _made(one: ParameterFacts, value: np.ndarray, given: np.ndarray, kind: str, seed: int) -> np.ndarray:
    draw = generator(seed, f"{kind}:{one.name}")
    normal = draw.standard_normal(value.shape, np.float32)
    if value.ndim < 2:
        is_gain = value.size > 1 and value.any() and bool((value == value.flat[0]).all())
        if is_gain:
            return np.float32(8.0) * normal if kind == "large-gains" else value + np.float32(0.2) * normal
        return given
    made = np.float32(given.std()) * normal
    if kind == "heavy-tailed":
        made *= np.float32(2.0)
        make_students_t(made.reshape(-1), draw)
    elif one.role in MAPS:
        made *= np.float32(4.0)
    return np.where(given == 0, given, made)  # a padding token's row stays zero
