"""What is kept of a side that trains by itself for some steps: the loss of each step, and some elements of every
gradient and of every parameter after its update."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

#: Elements kept of each parameter, at most: whole ones of a hundred million, in each of fifty steps, take 40 GB a run.
SAMPLES = 1024


class Trajectory:
    """A run of training, as it is made.

    Args:
        places: of the elements kept of each parameter (:func:`places_of`).
    """

    def __init__(self, places: dict[str, np.ndarray]) -> None:
        self.places = places
        self._kept: dict[str, list[np.ndarray]] = {}

    def loss(self, value: np.ndarray) -> None:
        """Keep the loss of a step."""
        self._append("loss", np.asarray(value, np.float64).reshape(1))

    def gradients(self, given: Mapping[str, np.ndarray]) -> None:
        """Keep a step's gradients by their parameters' names; one that is not given is 0."""
        for name, places in self.places.items():
            self._append(
                f"gradient:{name}", given[name].reshape(-1)[places] if name in given else np.zeros(len(places))
            )

    def updated(self, name: str, value: np.ndarray) -> None:
        """Keep a parameter after a step's update."""
        if name in self.places:
            self._append(f"updated:{name}", value.reshape(-1)[self.places[name]])

    def _append(self, name: str, value: np.ndarray) -> None:
        self._kept.setdefault(name, []).append(value.astype(np.float64))

    def tensors(self) -> dict[str, np.ndarray]:
        """Return what was kept by its name, float64 (steps, elements)."""
        return {name: np.stack(values) for name, values in self._kept.items()}


def choose_elements(name: str, gradient: np.ndarray) -> np.ndarray:
    """Draw the elements of a parameter that are kept: all of a small one; else half of them where its gradient is not
    0, since most rows of an embedding are of no token of the batch."""
    if gradient.size <= SAMPLES:
        return np.arange(gradient.size)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    used = np.flatnonzero(gradient)
    any_of_them = rng.choice(gradient.size, SAMPLES // 2, replace=False)
    return np.unique([*any_of_them, *rng.choice(used, min(len(used), SAMPLES // 2), replace=False)])
