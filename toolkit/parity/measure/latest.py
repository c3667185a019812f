"""What was measured of the tensor before: the output of a module is often that of its last child, once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

Found = TypeVar("Found")


class Latest(Generic[Found]):
    """Measures tensors one after another, and one that is the very object of the one before it no second time: a
    fifth of all numbers of a long text.

    Args:
        measure: of a tensor's name and value.
        is_alike: whether what two names are measured by is the same, too.
    """

    def __init__(
        self, measure: Callable[[str, np.ndarray], Found], is_alike: Callable[[str, str], bool] = lambda *_: True
    ) -> None:
        self._measure, self._is_alike = measure, is_alike
        self._before: tuple[str, np.ndarray, Found] | None = None

    def __call__(self, name: str, value: np.ndarray) -> Found:
        if self._before is None or value is not self._before[1] or not self._is_alike(self._before[0], name):
            self._before = name, value, self._measure(name, value)
        return self._before[2]
