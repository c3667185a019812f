"""Mixed precision: which operations of the ports use bfloat16, defined once for training and the gate.

A *lowered* matrix product rounds both operands to bfloat16, accumulates in float32, and rounds its result to bfloat16;
so do the two products of its backward. The result is cast back to float32, and all else is float32: parameters, their
gradients, sums, the optimizer. Paddle's own ``auto_cast`` is not used. On a CPU (3.3.1) it only warns. On a GPU its
level O1 leaves a product's result in bfloat16, so that dropout, activations and the sums around it are computed in
bfloat16; its level OD, which is what is wanted here, cannot be asked of PaddleNLP's Trainer.

This module imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Products in bfloat16: those of linear layers (also in language-model heads, without the bias), and the two of
#: attention, for its scores and its context.
PRODUCTS = ("linear", "attention")
#: Operations that would suffer in bfloat16. They, like all else, stay in float32.
KEPT = (
    "embedding",
    "layer norm",
    "softmax and its normaliser",
    "LSH hashing",
    "activation",
    "dropout",
    "bias",
    "residual streams",
    "loss",
    "sums of gradients",
    "optimizer and master weights",
)

_lowered: frozenset[str] = frozenset()


def is_lowered(product: str) -> bool:
    """Whether a product, one of :data:`PRODUCTS`, is computed in bfloat16 now."""
    return product in _lowered


@contextmanager
def lowered(products: Sequence[str] = PRODUCTS) -> Iterator[None]:
    """Compute these products, and no others, in bfloat16 inside the ``with`` block."""
    global _lowered
    before, _lowered = _lowered, frozenset(products)
    try:
        yield
    finally:
        _lowered = before


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function`` to lower later what is lowered now: a recomputing backward runs outside the ``with`` block."""
    products = tuple(_lowered)

    def later(*args: Any) -> Any:
        with lowered(products):
            return function(*args)

    return later
