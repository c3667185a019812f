"""Mixed precision: which operations of the ports use bfloat16, defined once for training and the gate.

A product that is *cast to bfloat16* rounds both operands to bfloat16, accumulates in float32, and rounds its result to
bfloat16. The two products of its backward do the same. The result is cast back to float32. Everything else is float32:
parameters, their gradients, sums, the optimizer.

Paddle's own ``auto_cast`` is not used. On a CPU (3.3.1) it only warns. On a GPU, its level O1 leaves the result of a
product in bfloat16, so that dropout, activations and the sums around it are computed in bfloat16. Its level OD would
cast as this module does, but PaddleNLP's Trainer cannot use it.

This module imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Kinds of products in bfloat16: of linear layers (also in language-model heads, without the bias), and the two of
#: attention, for its scores and its context.
PRODUCTS = ("linear", "attention")

_cast_products: frozenset[str] = frozenset()


def is_cast_to_bfloat16(product: str) -> bool:
    """Return whether a kind of products, one of :data:`PRODUCTS`, is computed in bfloat16 now."""
    return product in _cast_products


@contextmanager
def cast_to_bfloat16(products: Sequence[str] = PRODUCTS) -> Iterator[None]:
    """Compute these kinds of products, and no others, in bfloat16 inside the ``with`` block."""
    global _cast_products
    previous, _cast_products = _cast_products, frozenset(products)
    try:
        yield
    finally:
        _cast_products = previous


def keep_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that each call uses the precision of now.

    A backward that computes a block again calls it outside the ``with`` block.
    """
    products = tuple(_cast_products)

    def call_in_precision(*args: Any) -> Any:
        with cast_to_bfloat16(products):
            return function(*args)

    return call_in_precision
