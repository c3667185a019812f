"""Checks and replacements of buffer values that both sides of a pair share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

#: Number that replaces a hidden infinity or NaN: the smallest positive number of float64, which no operation computes.
HIDDEN_INFINITY = float(np.nextafter(0.0, 1.0))


def may_be_drawn(values: Mapping[str, np.ndarray]) -> bool:
    """Return whether another seed may change one of several tensors; a tensor of equal numbers is not drawn.

    Args:
        values: values of buffers or parameters, by name.
    """
    return any(value.dtype.kind == "f" and value.size > 1 and value.min() != value.max() for value in values.values())


def constant_of(value: np.ndarray) -> float | None:
    """Return the number that all elements of a tensor equal; None if they differ or are not floating-point numbers."""
    is_constant = value.dtype.kind == "f" and value.size > 0 and bool((value == value.flat[0]).all())
    return float(value.flat[0]) if is_constant else None


def is_same(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two arrays of a buffer's values are equal; NaN equals NaN.

    Args:
        first: values on one side.
        second: values on the other side.
    """
    return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


def hide_initial_infinities(value: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """Return a buffer's values after a step, with the infinities and NaN replaced that the step has not changed.

    An example is the infinities of a mask. No distance could be measured otherwise. The infinities of both sides before
    the step are compared separately.

    Args:
        value: values of the buffer after the step.
        initial: values of the buffer before the step.
    """
    unchanged_mask = ~np.isfinite(initial) & ((value == initial) | (np.isnan(value) & np.isnan(initial)))
    return np.where(unchanged_mask, value.dtype.type(HIDDEN_INFINITY), value) if unchanged_mask.any() else value


def restore_initial_infinities(value: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """Return a float64 buffer as it was before :func:`hide_initial_infinities` replaced its infinities and NaN.

    Args:
        value: values with replaced infinities.
        initial: values of the buffer before the step.
    """
    return np.where((value == HIDDEN_INFINITY) & ~np.isfinite(initial), initial, value)
