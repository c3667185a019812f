"""Find the output axis of a square weight of a user's own layer, from the gradients of single elements.

For any other weight, the shape shows this axis. For a layer of the framework, its class does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: Elements of an output that are tried: a ReLU may hide some.
MAX_ELEMENTS = 4


class SquareWeights:
    """Collects the square weights whose columns are outputs, while their layers run.

    Attributes:
        with_output_columns: names of these weights.
    """

    def __init__(self, gradient_of: Callable[[Any, int, Any], np.ndarray | None]) -> None:
        """Args:
        gradient_of: (output of a layer, place in its flattened elements, weight) -> gradient of that element for the
            weight, (channels, channels); None if there is none.
        """
        self._gradient_of = gradient_of
        self.with_output_columns: set[str] = set()

    def look_at(self, path: str, weights: Mapping[str, Any], output: Any) -> None:
        """Look at the weights that a layer of no framework's holds itself, after it has given an output."""
        for name, weight in weights.items():
            size = weight.shape[0] if weight.ndim == 2 else 0
            is_candidate = list(weight.shape) == [size, size] and list(output.shape[-1:]) == [size]
            if is_candidate and self._has_columns(output, weight):
                self.with_output_columns.add(f"{path}.{name}" if path else name)

    def _has_columns(self, output: Any, weight: Any) -> bool:
        """Return whether single elements of the output depend on one column of the weight, and not on one row.

        An element that is looked up in a table depends on one number of it, and shows nothing.
        """
        size = weight.shape[0]
        vectors = math.prod(output.shape) // size
        for channel in range(min(size, MAX_ELEMENTS)):
            place = channel * max(1, vectors // MAX_ELEMENTS) % vectors * size + channel
            gradient = self._gradient_of(output, place, weight)
            rows, columns = ((), ()) if gradient is None else map(set, np.nonzero(gradient))
            if len(rows) > 1 or len(columns) > 1:
                return columns == {channel}
        return False
