"""Memo of the last measurement: a module's output is often that of its last child."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

Found = TypeVar("Found")

#: Elements checked again, to see that they are unchanged.
SAMPLE = 4096


class LastMeasurement(Generic[Found]):
    """Measures tensors one after another, but not twice if one is the very object of the one before: a fifth of all
    numbers of a long text. Frameworks count in-place changes of a tensor, which make another object; a sample detects
    writes to its memory past them.

    Args:
        measure: of a tensor's name and value.
        is_alike: whether two names are measured alike.
    """

    def __init__(
        self, measure: Callable[[str, np.ndarray], Found], is_alike: Callable[[str, str], bool] = lambda *_: True
    ) -> None:
        self._measure, self._is_alike = measure, is_alike
        self._before: tuple[str, np.ndarray, np.ndarray, Found] | None = None

    def __call__(self, name: str, value: np.ndarray) -> Found:
        if self._before is not None:
            first, seen, sample, found = self._before
            if value is seen and self._is_alike(first, name) and np.array_equal(_sample(value), sample, equal_nan=True):
                return found
        found = self._measure(name, value)
        self._before = name, value, _sample(value), found
        return found


def _sample(value: np.ndarray) -> np.ndarray:
    """A copy of some elements, evenly spread."""
    return value.flat[:: max(1, value.size // SAMPLE)]
