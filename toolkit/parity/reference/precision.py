"""The reference in mixed precision: matrix products under torch's autocast, other operations in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Torch functions that compute each kind of product of :attr:`toolkit.parity.job.job.Job.lowered` inside the models.
#: LSH rotates by ``einsum``, which belongs to neither kind.
FUNCTIONS = {
    "linear": (torch.nn.functional.linear,),
    "attention": (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm),
}


class Bfloat16Products(TorchFunctionMode):
    """Inside the ``with`` block, only some kinds of matrix products run under torch's autocast to bfloat16.

    Plain autocast would also use bfloat16 for other operations. Its lists of operations differ between CPU and GPU and
    between releases, and include layer norm and softmax on a CPU. This mode casts the result of a product back to
    float32, and adds the bias of a linear layer in float32. Weights are cast at each use, so that the gradients of
    several uses are added in float32, too.

    Args:
        products: kinds of products, which are keys of :data:`FUNCTIONS`.
        device: type of the device, such as ``cpu``.
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
        """Return the output of a linear layer, with its product in bfloat16 and its bias added in float32."""
        product = self._product(torch.nn.functional.linear, x, weight)
        return product if bias is None else product + bias

    def _product(self, function: Any, *args: torch.Tensor) -> torch.Tensor:
        """Return the product of tensors that ``function`` computes in bfloat16, in the dtype of the first tensor."""
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            product = function(*args)
        return product.to(args[0].dtype)


def use_precision(dtype: str, products: Sequence[str], device: torch.device) -> contextlib.AbstractContextManager:
    """Return a context manager that computes a run's products in bfloat16 if its dtype is ``bfloat16``.

    Args:
        dtype: dtype of the run. Any dtype except ``bfloat16`` changes nothing.
        products: kinds of products, which are keys of :data:`FUNCTIONS`.
        device: device of the run.
    """
    return Bfloat16Products(products, device.type) if dtype == "bfloat16" else contextlib.nullcontext()
