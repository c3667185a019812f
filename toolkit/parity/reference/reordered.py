"""The same computation with every sum in another order: the network's own rounding, apart from what it amplifies.

Moving the weights by a unit in the last place shows how a network passes errors on. It hardly shows the errors that the
network makes itself: where attention is saturated, the backward of softmax subtracts two numbers that agree to the last
digit, and what is left is the rounding of one sum, the same however the weights are moved. Another implementation adds
up in another order. So do the runs here: each sum is cut in two at a random place, and the parts are added up apart,
the second first. That moves no element. A random order of all terms measures the same noise, but took a third of the
time of a gate of google/reformer-enwik8's size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
#: Torch's own: while a user's model runs, the function of that name takes recorded draws.
randint = torch.randint


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Torch's decomposition, with the same roundings, in as little memory as possible: the scores over a large
    vocabulary take half a gigabyte."""
    x = x.contiguous()
    if not x.numel():
        return x.clone()
    shifted = x - x.amax(dim, keepdim=True)
    return shifted.sub_(shifted.exp().sum(dim, keepdim=True).log())


def _log_softmax_backward(gradient: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Likewise."""
    of_sum = output.exp().mul_(gradient.sum(dim, keepdim=True))
    return torch.sub(gradient, of_sum, out=of_sum)


#: Decompositions of kernels that contain a sum.
FUSED = {
    **get_decompositions(
        [aten._softmax, aten._softmax_backward_data, aten.native_layer_norm, aten.native_layer_norm_backward]
    ),
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
}


#: Products of over LARGE numbers are added up ROWS rows at a time.
LARGE, ROWS = 2**26, 4096


class SumsReordered(TorchDispatchMode):
    """Inside the ``with`` block every float64 sum, product of matrices, softmax and layer norm adds up in another order
    that follows from ``seed``, in the forward and the backward."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(seed)
        self._shared: list[int] | None = None

    @contextlib.contextmanager
    def parts_of_one(self) -> Iterator[None]:
        """Inside the ``with`` block cut all sums, of one length, at the same place: they are parts of one."""
        self._shared = []
        try:
            yield
        finally:
            self._shared = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not (args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64):
            return function(*args, **kwargs)
        if function in FUSED:
            with self:
                return FUSED[function](*args, **kwargs)
        if function in (aten.mm.default, aten.bmm.default):
            return self._product(function, *args)
        if function is aten.addmm.default and not kwargs:
            return self._product(aten.mm.default, *args[1:]).add_(args[0])
        if function in (aten.sum.dim_IntList, aten.mean.dim) and len(args[1] or ()) == 1 and not kwargs:
            total = self._sum(args[0], args[1][0], keepdim=len(args) > 2 and args[2])
            return total if function is aten.sum.dim_IntList else total.div_(args[0].shape[args[1][0]])
        return function(*args, **kwargs)

    def _product(self, multiply: Callable, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """A product of matrices, (..., M, K) by (..., K, N)."""
        cut = self._cut(left.shape[-1])
        if cut is None or not left.numel():  # of no rows, as of an expert that no token chose
            return multiply(left, right)
        product = multiply(left[..., cut:], right[..., cut:, :])
        left, right = left[..., :cut], right[..., :cut, :]
        # Holds the gradient of a large output layer once, not twice.
        rows = max(1, len(product)) if product.numel() <= LARGE else ROWS
        for start in range(0, len(product), rows):
            part = left[start : start + rows]
            whole = right if right.ndim == 2 else right[start : start + rows]
            product[start : start + rows].add_(multiply(part, whole))
        return product

    def _sum(self, terms: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
        length = terms.shape[dim]
        cut = self._cut(length)
        if cut is None:
            return terms.sum(dim, keepdim)
        return terms.narrow(dim, cut, length - cut).sum(dim, keepdim).add_(terms.narrow(dim, 0, cut).sum(dim, keepdim))

    def _cut(self, length: int) -> int | None:
        """Where to cut a sum of ``length`` terms; None if it has no other order."""
        if length <= 2:
            return None
        if self._shared:
            return self._shared[0]
        cut = int(randint(1, length, (), generator=self.draw))
        if self._shared is not None:
            self._shared.append(cut)
        return cut
