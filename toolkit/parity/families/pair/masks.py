"""Finds the comparisons that create masks in the forward of a pair's port, and moves their bounds.

An example is the `<=` in `keys <= queries`, which creates a causal mask. A mutant moves its bound by one position.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import paddle

from toolkit.parity.families.pair import replaced_functions
from toolkit.parity.families.pair.replaced_functions import calling_frame, calling_line
from toolkit.parity.measure.mask_comparisons import COMPARISONS, MaskComparisons, Site, column_of


class MaskWatch:
    """Follows the results of all comparisons of a forward, as the watcher of :func:`.calls.watch`.

    Args:
        path_fn: function that returns the dotted path of the running layer.
        paddle_layers: paths of the layers whose ``forward`` is Paddle's own.

    Attributes:
        comparisons: comparisons so far, and which of them masked a tensor.
        operations: source locations of the port's calls of Paddle functions, `file:line:column`, except for random
            draws.
    """

    def __init__(self, path_fn: Callable[[], str], paddle_layers: Collection[str]) -> None:
        self._path_fn, self._paddle_layers = path_fn, paddle_layers
        self._is_inside = False
        self.comparisons = MaskComparisons(_memory_address, _tensor_values, self._site)
        self.operations: set[str] = set()

    def call(self, name: str, original: Callable, args: tuple, options: Mapping[str, Any]) -> Any:
        """Call a function of Paddle, follow the masks among its inputs and results, and return its result.

        Args:
            name: name of the function, such as `matmul` or `__add__`.
            original: Paddle's own function.
            args: positional arguments of the call.
            options: keyword arguments of the call.
        """
        if self._is_inside:
            return original(*args, **options)
        self._is_inside = True
        try:
            result = original(*args, **options)
            operation, inputs = name.strip("_"), tensors_of((*args, *options.values()))
            results = [args[0]] if operation == "setitem" else tensors_of([result])
            if all(tensor._is_initialized() for tensor in (*inputs, *results)):
                self.comparisons.observe(operation, inputs, results)
            if self._path_fn() not in self._paddle_layers and not _is_drawing() and (site := self._site()) is not None:
                self.operations.add(f"{site.line}:{site.column}")
        finally:
            self._is_inside = False
        return result

    def _site(self) -> Site | None:
        """Return the current position in the port's code; None outside of the port's code."""
        frame = calling_frame()
        return None if frame is None else Site(calling_line(), column_of(frame), self._path_fn())


def _is_drawing() -> bool:
    """Return whether a replaced random function of :mod:`.replaced_functions` is running."""
    caller, frame = calling_frame(), sys._getframe(1)
    while frame is not caller and frame.f_back is not None:
        if frame.f_code.co_filename == replaced_functions.__file__:
            return True
        frame = frame.f_back
    return False


def tensors_of(values: Any) -> list[paddle.Tensor]:
    """Return the tensors among nested lists and tuples of values, in order."""
    if isinstance(values, paddle.Tensor):
        return [values]
    return [tensor for value in values for tensor in tensors_of(value)] if isinstance(values, (list, tuple)) else []


def _memory_address(tensor: paddle.Tensor) -> int:
    """Return the memory address of a tensor's data."""
    return tensor.data_ptr()


def _tensor_values(tensor: paddle.Tensor) -> np.ndarray:
    """Return a tensor's values as an array."""
    return tensor.detach().numpy()


def shift_bound(name: str, args: tuple) -> tuple:
    """Return the arguments of a comparison, with the bound moved so that it includes one more position.

    Example: the arguments `(x, 3)` of `x > 3` become `(x, 2)`.

    Args:
        name: name of the Paddle function, such as `__gt__` or `triu`.
        args: positional arguments: the compared tensor, and the bound, which is 0 if it is missing.
    """
    operator = COMPARISONS[name.strip("_")]
    shift = -1 if operator in (">", ">=", "triu") else 1
    bound = args[1] if len(args) > 1 else 0
    return (args[0], bound + shift, *args[2:])
