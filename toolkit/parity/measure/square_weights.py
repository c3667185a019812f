"""Search for the output axis of a square weight in a user's layer, by the gradients of single output elements.

The shape of any other weight shows this axis. The class of a framework's layer shows it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: Largest number of output elements whose gradients are tried: a ReLU may hide some.
MAX_ELEMENTS = 4


class SquareWeights:
    """Collects the square weights whose columns are output channels, while their layers run.

    Attributes:
        with_output_columns: names of the weights whose columns are output channels.
    """

    def __init__(self, gradient_of: Callable[[Any, int, Any], np.ndarray | None]) -> None:
        """Prepare to examine a model's layers; no weight is collected yet.

        Args:
            gradient_of: function of a layer's output, the index of a flattened element and a weight. It returns the
                gradient of the
            element for the weight, (channels, channels); None if the element does not depend on it.
        """
        self._gradient_of = gradient_of
        self.with_output_columns: set[str] = set()

    def examine_layer(self, module_name: str, layer_weights: Mapping[str, Any], output: Any) -> None:
        """Collect the square weights of a user's layer whose columns are output channels, after the layer's forward.

        Args:
            module_name: dotted path of the layer; empty for the model.
            layer_weights: the layer's own weights by name, without the weights of its children.
            output: the layer's output, (..., channels).
        """
        for name, weight in layer_weights.items():
            size = weight.shape[0] if weight.ndim == 2 else 0
            is_candidate = list(weight.shape) == [size, size] and list(output.shape[-1:]) == [size]
            if is_candidate and self._has_columns(output, weight):
                self.with_output_columns.add(f"{module_name}.{name}" if module_name else name)

    def _has_columns(self, output: Any, weight: Any) -> bool:
        """Return whether single elements of a layer's output depend on one column of a weight, and not on one row.

        An element that is looked up in a table depends on a single number of the table, which shows nothing.

        Args:
            output: the layer's output, (..., channels).
            weight: weight of the layer, (channels, channels).
        """
        size = weight.shape[0]
        num_vectors = math.prod(output.shape) // size
        for channel in range(min(size, MAX_ELEMENTS)):
            index = channel * max(1, num_vectors // MAX_ELEMENTS) % num_vectors * size + channel
            gradient = self._gradient_of(output, index, weight)
            rows, columns = ((), ()) if gradient is None else map(set, np.nonzero(gradient))
            if len(rows) > 1 or len(columns) > 1:
                return columns == {channel}
        return False
