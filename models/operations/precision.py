"""Mixed precision: which operations of the ports are computed in bfloat16, in one place for training and for the gate.

A product of matrices that is *lowered* has both operands rounded to bfloat16, adds up in float32, and its result is
rounded to bfloat16; likewise the two products of its backward. Whatever comes out is float32 again, and so is all else:
parameters, their gradients, sums, the optimizer. Paddle's own ``auto_cast`` is not used. On a CPU (3.3.1) it does
nothing but warn. On a GPU its level O1 leaves what a product gives in bfloat16, in which dropout, activations and the
sums around it are then computed; its level OD, which means what is meant here, cannot be asked of PaddleNLP's Trainer.

This module imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: What is computed in bfloat16: the products of linear layers (the language-model heads' too, without the bias), and
#: the two of attention, for its scores and its context.
PRODUCTS = ("linear", "attention")
#: What stays in float32: all else, of which these are the operations that would suffer.
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
    """Inside the ``with`` block these products are computed in bfloat16, and no others."""
    global _lowered
    before, _lowered = _lowered, frozenset(products)
    try:
        yield
    finally:
        _lowered = before


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which lowers at any later call what is lowered now: a backward that computes layers again runs
    outside of the ``with`` block of its forward."""
    products = tuple(_lowered)

    def later(*args: Any) -> Any:
        with lowered(products):
            return function(*args)

    return later
