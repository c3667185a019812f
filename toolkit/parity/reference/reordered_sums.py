"""Runs with each sum in another order, which show the rounding errors of the operations themselves.

Nudged weights show how a network amplifies errors, but hardly the errors of its own operations. If attention is
saturated, the backward of softmax subtracts two numbers that agree to the last digit. The result is the rounding of a
sum, which is the same for all nudged weights. Another implementation adds in another order. These runs do, too: each
sum is cut in two at a random index, the parts are summed separately, and the first sum is added to the second. No
element is moved. A random order of all terms measures the same noise, but took a third of the time of a gate of the
size of google/reformer-enwik8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
#: torch's own function. While a user's model runs, ``torch.randint`` is replaced by recorded draws.
randint = torch.randint


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Return the log-softmax with the roundings of torch's decomposition, in less memory.

    The scores of a large vocabulary need half a gigabyte.

    Args:
        x: scores.
        dim: axis of the softmax.
        half_to_float: argument of torch's operation, which is not used.
    """
    x = x.contiguous()
    if not x.numel():
        return x.clone()
    difference = x - x.amax(dim, keepdim=True)
    return difference.sub_(difference.exp().sum(dim, keepdim=True).log())


def _log_softmax_backward(gradient: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the gradient of a log-softmax with the roundings of torch's decomposition, in less memory.

    Args:
        gradient: gradient of the output.
        output: output of the log-softmax.
        dim: axis of the softmax.
        dtype: argument of torch's operation, which is not used.
    """
    correction = output.exp().mul_(gradient.sum(dim, keepdim=True))
    return torch.sub(gradient, correction, out=correction)


#: By each kernel that contains a sum: a function that computes the same from elementary operations, with separate sums.
DECOMPOSITIONS = {
    **get_decompositions(
        [aten._softmax, aten._softmax_backward_data, aten.native_layer_norm, aten.native_layer_norm_backward]
    ),
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
}
#: The two parts of a product with more than LARGE elements are added ROWS rows at a time.
LARGE, ROWS = 2**26, 4096


class ReorderedSums(TorchDispatchMode):
    """Inside the ``with`` block, float64 sums, products of matrices, softmax and layer norm add in another order.

    This holds for the forward and the backward.

    Args:
        seed: seed of the random index that cuts each sum in two.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(seed)
        self._shared_cut: list[int] | None = None

    @contextlib.contextmanager
    def share_cut(self) -> Iterator[None]:
        """Inside the ``with`` block, cut all sums at the same index, since they are parts of a single sum."""
        self._shared_cut = []
        try:
            yield
        finally:
            self._shared_cut = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not (args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64):
            return function(*args, **kwargs)
        if function in DECOMPOSITIONS:
            with self:
                return DECOMPOSITIONS[function](*args, **kwargs)
        if function in (aten.mm.default, aten.bmm.default):
            return self._product(function, *args)
        if function is aten.addmm.default and not kwargs:
            return self._product(aten.mm.default, *args[1:]).add_(args[0])
        if function in (aten.sum.dim_IntList, aten.mean.dim) and len(args[1] or ()) == 1 and not kwargs:
            total = self._sum(args[0], args[1][0], keepdim=len(args) > 2 and args[2])
            return total if function is aten.sum.dim_IntList else total.div_(args[0].shape[args[1][0]])
        return function(*args, **kwargs)

    def _product(self, multiply: Callable, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return a product of matrices whose sums are cut in two.

        Args:
            multiply: torch's operation for the product.
            first: matrices (..., M, K).
            second: matrices (..., K, N).
        """
        cut = self._cut(first.shape[-1])
        if cut is None or not first.numel():  # without rows, such as the input of an expert without tokens
            return multiply(first, second)
        product = multiply(first[..., cut:], second[..., cut:, :])
        first, second = first[..., :cut], second[..., :cut, :]
        # Row by row, so that the gradient of a large output layer is in memory once.
        rows = max(1, len(product)) if product.numel() <= LARGE else ROWS
        for start in range(0, len(product), rows):
            part = first[start : start + rows]
            second_part = second if second.ndim == 2 else second[start : start + rows]
            product[start : start + rows].add_(multiply(part, second_part))
        return product

    def _sum(self, terms: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
        """Return the sum of ``terms`` along the axis ``dim``, computed in two parts."""
        length = terms.shape[dim]
        cut = self._cut(length)
        if cut is None:
            return terms.sum(dim, keepdim)
        return terms.narrow(dim, cut, length - cut).sum(dim, keepdim).add_(terms.narrow(dim, 0, cut).sum(dim, keepdim))

    def _cut(self, length: int) -> int | None:
        """Return the index that cuts a sum of ``length`` terms in two; None if the sum has no other order."""
        if length <= 2:
            return None
        if self._shared_cut:
            return self._shared_cut[0]
        cut = int(randint(1, length, (), generator=self.draw))
        if self._shared_cut is not None:
            self._shared_cut.append(cut)
        return cut
