"""The comparisons that make masks in the forward of a pair's port, and a change of their bounds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import paddle

from toolkit.parity.families.pair import replaced
from toolkit.parity.families.pair.replaced import calling_frame, calling_line
from toolkit.parity.measure.mask_comparisons import COMPARISONS, MaskComparisons, Site, column_of


class MaskWatch:
    """Follows every comparison while it is given the calls (:func:`.calls.watch`).

    Args:
        module: returns the path of the running layer.
        paddle_layers: paths of the layers whose forward is Paddle's own.

    Attributes:
        operations: source locations of the calls in the port's own code, without its random draws.
    """

    def __init__(self, module: Callable[[], str], paddle_layers: Collection[str]) -> None:
        self._module, self._paddle_layers = module, paddle_layers
        self._is_inside = False
        self.comparisons = MaskComparisons(_address, _values, self._site)
        self.operations: set[str] = set()

    def call(self, name: str, original: Callable, args: tuple, options: Mapping[str, Any]) -> Any:
        """Call a function of Paddle's, and follow it."""
        if self._is_inside:
            return original(*args, **options)
        self._is_inside = True
        try:
            result = original(*args, **options)
            plain, inputs = name.strip("_"), tensors_of((*args, *options.values()))
            results = [args[0]] if plain == "setitem" else tensors_of([result])
            if all(one._is_initialized() for one in (*inputs, *results)):
                self.comparisons.observe(plain, inputs, results)
            if self._module() not in self._paddle_layers and not _is_drawing() and (site := self._site()) is not None:
                self.operations.add(f"{site.line}:{site.column}")
        finally:
            self._is_inside = False
        return result

    def _site(self) -> Site | None:
        frame = calling_frame()
        return None if frame is None else Site(calling_line(), column_of(frame), self._module())


def _is_drawing() -> bool:
    """Return whether a function that takes recorded draws is running."""
    caller, frame = calling_frame(), sys._getframe(1)
    while frame is not caller and frame.f_back is not None:
        if frame.f_code.co_filename == replaced.__file__:
            return True
        frame = frame.f_back
    return False


def tensors_of(values: Any) -> list[paddle.Tensor]:
    """Return the tensors among values, and in lists of them."""
    if isinstance(values, paddle.Tensor):
        return [values]
    return [one for value in values for one in tensors_of(value)] if isinstance(values, (list, tuple)) else []


def _address(tensor: paddle.Tensor) -> int:
    return tensor.data_ptr()


def _values(tensor: paddle.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def with_shifted_bound(name: str, args: tuple) -> tuple:
    """Return a comparison's arguments with a bound that includes one more position."""
    operator = COMPARISONS[name.strip("_")]
    by = -1 if operator in (">", ">=", "triu") else 1
    bound = args[1] if len(args) > 1 else 0
    return (args[0], bound + by, *args[2:])
