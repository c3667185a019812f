"""The same computation with every sum in another order: what rounding does to a result, apart from what it amplifies.

Moving the weights by a unit in the last place shows how a network passes errors on. It hardly shows the errors that the
network makes itself: where attention is saturated, the backward of softmax subtracts two numbers that agree to the last
digit, and what is left is the rounding of one sum, the same however the weights are moved. Another implementation adds
up in another order. So do the runs here.
"""

from __future__ import annotations

import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
#: Kernels that hide a sum among other steps, taken apart.
FUSED = get_decompositions(
    [
        aten._softmax,
        aten._softmax_backward_data,
        aten._log_softmax,
        aten._log_softmax_backward_data,
        aten.native_layer_norm,
        aten.native_layer_norm_backward,
    ]
)


class SumsReordered(TorchDispatchMode):
    """Inside the ``with`` block every float64 sum, product of matrices, softmax and layer norm adds up in a random
    order that follows from ``seed``, in the forward and the backward."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not (args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64):
            return function(*args, **kwargs)
        if function in FUSED:
            with self:
                return FUSED[function](*args, **kwargs)
        if function in (aten.mm.default, aten.bmm.default):
            return function(*self._matched(*args), **kwargs)
        if function is aten.addmm.default:
            return function(args[0], *self._matched(*args[1:]), **kwargs)
        if function in (aten.sum.dim_IntList, aten.mean.dim) and len(args[1] or ()) == 1:
            return function(self._shuffled(args[0], args[1][0]), *args[1:], **kwargs)
        return function(*args, **kwargs)

    def _matched(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two factors with the axis along which they are multiplied in another order."""
        order = self._order(left.shape[-1], left.device)
        return left.index_select(-1, order), right.index_select(-2, order)

    def _shuffled(self, terms: torch.Tensor, dim: int) -> torch.Tensor:
        return terms.index_select(dim, self._order(terms.shape[dim], terms.device))

    def _order(self, length: int, device: torch.device) -> torch.Tensor:
        return torch.randperm(length, generator=self.draw).to(device)
