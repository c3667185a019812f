"""Complex numbers as real ones, as which both sides keep, hand over and compare them: rotary positions are often
computed as complex products, spectral layers are."""

from __future__ import annotations

import numpy as np


def as_real(value: np.ndarray) -> np.ndarray:
    """Return the real and imaginary parts of complex numbers side by side, in a last axis of 2; others as they are."""
    if value.dtype.kind != "c":
        return value
    return np.ascontiguousarray(value[..., None]).view(value.real.dtype)


def as_complex(value: np.ndarray) -> np.ndarray:
    """Return the complex numbers of which these are the parts (:func:`as_real`)."""
    return np.ascontiguousarray(value).view(np.result_type(value.dtype, np.complex64))[..., 0]
