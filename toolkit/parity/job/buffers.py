"""What both sides of a pair ask of the values of buffers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def may_be_drawn(values: Mapping[str, np.ndarray]) -> bool:
    """Whether another seed may give one of these other values: a buffer of one number, as ones, is not drawn."""
    return any(value.dtype.kind == "f" and value.size > 1 and value.min() != value.max() for value in values.values())


def is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two values of a buffer are the same."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
