"""Gradient of a matrix that is too large to be held as a whole.

The gradient of an output layer over 246,534 words takes 2.5 GB in float64, as much as the layer itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toolkit.parity.measure.error_stats import ROWS
from toolkit.parity.reference.reordered_sums import ReorderedSums

#: Receiver of a gradient: called with the index of the first row, and several rows of the gradient, (rows, columns).
Take = Callable[[int, torch.Tensor], None]


class GradientByRows(TorchDispatchMode):
    """Inside the ``with`` block, a backward passes on a matrix's gradient in order, :data:`.ROWS` rows at a time.

    The gradient is torch's own product, computed for a few rows of its left factor at a time. Each element is the same
    sum as in the whole product. A gradient that torch computes in another way is passed on when it is complete.

    Args:
        matrix: the matrix, (rows, columns).
        take: receiver of the gradient's rows.
        sums: mode that reorders all sums; None to keep torch's order.

    Attributes:
        used: the matrix that the model must use instead of ``matrix``.
    """

    def __init__(self, matrix: torch.Tensor, take: Take, sums: ReorderedSums | None = None) -> None:
        super().__init__()
        self.shape = tuple(matrix.shape)
        self.sums = sums
        self.handed_on = _HandedOn(take)
        self.matrix = matrix.detach()
        self.used = _Used.apply(matrix.detach().requires_grad_(), self.handed_on)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if function is not torch.ops.aten.mm.default or not self._is_gradient(*args[:2]):
            return function(*args, **(kwargs or {}))
        left, right = args
        with self.sums.share_cut() if self.sums else contextlib.nullcontext():
            for start in range(0, len(left), ROWS):
                self.handed_on.take(start, function(left[start : start + ROWS], right))
        self.handed_on.is_done = True
        return left.new_zeros(()).expand(self.shape)  # a placeholder without memory

    def _is_gradient(self, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Return whether a product of two matrices is the gradient of the matrix.

        It is if it has the shape of the matrix and neither factor is the matrix.

        Args:
            left: left factor of the product.
            right: right factor of the product.
        """
        own = self.matrix.untyped_storage().data_ptr()
        is_own = any(factor.untyped_storage().data_ptr() == own for factor in (left, right))
        return (left.shape[0], right.shape[1]) == self.shape and not is_own


class _HandedOn:
    """Receiver of a gradient that knows whether all rows were passed on.

    It holds no reference to the matrix, so that the matrix can be freed.

    Args:
        take: receiver of the gradient's rows.
    """

    def __init__(self, take: Take) -> None:
        self.take = take
        self.is_done = False

    def whole(self, gradient: torch.Tensor) -> None:
        """Pass on a gradient that was computed as a whole; skip the placeholder of a gradient that came by rows."""
        for start in () if self.is_done else range(0, len(gradient), ROWS):
            self.take(start, gradient[start : start + ROWS])


class _Used(torch.autograd.Function):
    """Identity function whose backward receives the gradient of the matrix and ends there."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, handed_on: _HandedOn) -> torch.Tensor:
        """Return the matrix as a view, and keep the collected gradients for the backward."""
        ctx.handed_on = handed_on
        return matrix.view_as(matrix)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        """Pass on the gradient of the whole matrix to the collected gradients."""
        ctx.handed_on.whole(gradient)
        return None, None
