"""Record of the comparisons that produce masks in the forward of a pair's reference."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toolkit.parity.measure.mask_comparisons import MaskComparisons, Site, column_of
from toolkit.parity.reference.float64_checks import calling_frame


class MaskWatch(TorchDispatchMode):
    """Inside the ``with`` block, follows each comparison of a forward that may produce a mask.

    Attributes:
        comparisons: record of the comparisons (:class:`.mask_comparisons.MaskComparisons`).

    Args:
        module_fn: returns the dotted path of the running module.
    """

    def __init__(self, module_fn: Callable[[], str]) -> None:
        super().__init__()
        self._module = module_fn
        self.comparisons = MaskComparisons(_address, _values, self._site)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        inputs, results = (
            [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)] for tree in ((args, kwargs), result)
        )
        if not any(tensor.is_meta or tensor.is_sparse or tensor.is_quantized for tensor in (*inputs, *results)):
            self.comparisons.observe(function.overloadpacket.__name__.strip("_"), inputs, results)
        return result

    def _site(self) -> Site | None:
        """Return the source location and module of the running operation; None outside the user's code."""
        frame = sys._getframe()
        while frame.f_code.co_name != "__torch_dispatch__":
            assert frame.f_back is not None
            frame = frame.f_back
        caller = calling_frame(frame)
        if caller is None:
            return None
        return Site(f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}", column_of(caller), self._module())


def _address(tensor: torch.Tensor) -> int:
    """Return the memory address of a tensor's storage, which all views of the tensor share."""
    return tensor.untyped_storage().data_ptr()


def _values(tensor: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor as an array; bfloat16 values are returned in float32."""
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # NumPy lacks bfloat16
    return wide.numpy(force=True)
