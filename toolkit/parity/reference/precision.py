"""The reference in mixed precision: its matrix products under torch's autocast, all else in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Name of :attr:`toolkit.parity.job.job.Job.lowered` -> torch functions that compute it inside the models. The
#: rotations of LSH are a product by ``einsum`` and belong to neither.
FUNCTIONS = {
    "linear": (torch.nn.functional.linear,),
    "attention": (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm),
}


class LoweredProducts(TorchFunctionMode):
    """Inside the ``with`` block each call of these functions, and no other, is one of torch's autocast.

    Autocast alone would go on in bfloat16 with all that its own lists deem safe; these differ between CPU and GPU and
    between releases, and on a CPU include layer norm and softmax. Here a product's result is cast back to float32, in
    which a linear layer's bias is added. Weights are cast at each use, so that gradients of several uses are added up
    in float32, too.

    Args:
        products: names of :data:`FUNCTIONS`.
    """

    def __init__(self, products: Sequence[str], device: str) -> None:
        super().__init__()
        self.functions = {function for product in products for function in FUNCTIONS[product]}
        self.device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in self.functions:
            return function(*args, **(kwargs or {}))
        if function is torch.nn.functional.linear:
            return self._linear(*args, **(kwargs or {}))
        return self._product(function, *args, **(kwargs or {}))

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        mapped = self._product(torch.nn.functional.linear, x, weight)
        return mapped if bias is None else mapped + bias

    def _product(self, function: Any, *args: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            lowered = function(*args)
        return lowered.to(args[0].dtype)


def in_precision(dtype: str, products: Sequence[str], device: torch.device) -> contextlib.AbstractContextManager:
    """Inside the ``with`` block, lower the products of a run in bfloat16."""
    return LoweredProducts(products, device.type) if dtype == "bfloat16" else contextlib.nullcontext()
