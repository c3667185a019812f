"""Cache of the last tensor's measurement: the output of a module is often the output of its last child."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

#: Type of a measurement.
Result = TypeVar("Result")

#: Number of elements that are compared again, to detect that a tensor has changed.
SAMPLE = 4096


class LastMeasurement(Generic[Result]):
    """Measures tensors one after another, but reuses the result if the same array object comes twice in a row.

    This saves a fifth of all numbers of a long text. An in-place operation of a framework makes a new array object. A
    sample of elements detects writes that bypass the framework.

    Args:
        measure: returns the measurement of a tensor, given its name and value.
        is_alike: returns whether two tensors of equal values and these names have the same measurement.
    """

    def __init__(
        self, measure: Callable[[str, np.ndarray], Result], is_alike: Callable[[str, str], bool] = lambda *_: True
    ) -> None:
        self._measure, self._is_alike = measure, is_alike
        self._previous: tuple[str, np.ndarray, np.ndarray, Result] | None = None

    def __call__(self, name: str, value: np.ndarray) -> Result:
        """Return the measurement of a tensor, given its name and value.

        This is the last measurement if the value is the last array object and has not changed.
        """
        if self._previous is not None:
            last_name, last, sample, result = self._previous
            is_same = value is last and self._is_alike(last_name, name)
            if is_same and np.array_equal(_sample(value), sample, equal_nan=True):
                return result
        result = self._measure(name, value)
        self._previous = name, value, _sample(value), result
        return result


def _sample(value: np.ndarray) -> np.ndarray:
    """Return a copy of about :data:`SAMPLE` elements of an array, at even distances."""
    return value.flat[:: max(1, value.size // SAMPLE)]
