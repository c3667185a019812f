"""Record of one side's independent training: losses, and some elements of gradients and updated parameters."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

#: Largest number of elements to keep of a parameter. A hundred million elements in fifty steps would be 40 GB a run.
SAMPLES = 1024


class Trajectory:
    """The losses, gradients and parameters of a training run, collected step by step.

    Args:
        places: indices of the elements to keep of each parameter, by its name (:func:`choose_elements`).
    """

    def __init__(self, places: dict[str, np.ndarray]) -> None:
        self.places = places
        self._steps: dict[str, list[np.ndarray]] = {}

    def add_loss(self, loss: np.ndarray) -> None:
        """Add the loss of the next step, a single number."""
        self._append("loss", np.asarray(loss, np.float64).reshape(1))

    def add_gradients(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Add the gradients of a step by the names of their parameters; a missing gradient counts as 0."""
        for name, places in self.places.items():
            self._append(
                f"gradient:{name}", gradients[name].reshape(-1)[places] if name in gradients else np.zeros(len(places))
            )

    def add_parameter(self, name: str, values: np.ndarray) -> None:
        """Add the value of a parameter after a step's update; ignored if no elements of the parameter are kept."""
        if name in self.places:
            self._append(f"updated:{name}", values.reshape(-1)[self.places[name]])

    def _append(self, name: str, step_value: np.ndarray) -> None:
        """Add the elements of a tensor in the next step, under the tensor's name."""
        self._steps.setdefault(name, []).append(step_value.astype(np.float64))

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the losses and the kept elements by name, float64 (steps, elements).

        The names are ``loss``, ``gradient:NAME`` and ``updated:NAME``.
        """
        return {name: np.stack(steps) for name, steps in self._steps.items()}


def choose_elements(name: str, gradient: np.ndarray) -> np.ndarray:
    """Return the flat indices of the elements to keep of a parameter; all indices of a small parameter.

    Half of them have a gradient that is not 0, since most rows of an embedding belong to tokens that the batch lacks.
    The indices are random, and the same in each run.

    Args:
        name: name of the parameter.
        gradient: gradient of the parameter in the first step.
    """
    if gradient.size <= SAMPLES:
        return np.arange(gradient.size)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    nonzero = np.flatnonzero(gradient)
    any_elements = rng.choice(gradient.size, SAMPLES // 2, replace=False)
    return np.unique([*any_elements, *rng.choice(nonzero, min(len(nonzero), SAMPLES // 2), replace=False)])
