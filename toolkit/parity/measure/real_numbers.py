"""Conversion of complex tensors to real tensors, which both sides store, send and compare.

Rotary positions are often computed as complex products, and spectral layers are complex.
"""

from __future__ import annotations

import numpy as np


def as_real(value: np.ndarray) -> np.ndarray:
    """Return complex numbers as pairs of real and imaginary parts, (..., 2); real numbers unchanged."""
    if value.dtype.kind != "c":
        return value
    return np.ascontiguousarray(value[..., None]).view(value.real.dtype)


def as_complex(value: np.ndarray) -> np.ndarray:
    """Return complex numbers, (...), given the pairs of their real and imaginary parts, (..., 2).

    It is the inverse of :func:`as_real`.
    """
    return np.ascontiguousarray(value).view(np.result_type(value.dtype, np.complex64))[..., 0]
