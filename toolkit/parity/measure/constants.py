"""Distance of a constant that a port computes once from the reference's, in units of rounding."""

from __future__ import annotations

import numpy as np

#: Half the distance from 1 to the next number of float32.
UNIT = 2.0**-24
#: The rounding of an element is the rounding of the table's largest number, which may take part in its computation.
#: It is at most the rounding of a number this many times the element: a wrong small number would otherwise hide.
MAX_SCALE = 1024.0
#: Numbers from this size on are taken for a mask's (-1e4, -1e9): the other elements are not computed with them.
MASK_SIZE = 1e3


def measure_angle_error(own: np.ndarray, reference: np.ndarray) -> float:
    """Return the distance of two position tables (positions, width) in units of rounding of the angle.

    A unit is 2^-24 times the position, or 2^-24 for the first. Infinite if shape or dtype differs."""
    if own.shape != reference.shape or own.dtype != reference.dtype:
        return float("inf")
    angles = np.maximum(np.arange(len(own), dtype=np.float64), 1.0)[:, None]
    return float((np.abs(own.astype(np.float64) - reference) / (UNIT * angles)).max())


def measure_table_error(own: np.ndarray, exact: np.ndarray, in_float32: np.ndarray) -> float:
    """Return the largest error of a buffer's elements, each in units of the element's rounding.

    Args:
        own: the port's buffer, as computed in the dtype of the run.
        exact: the reference's, computed in float64, of the same shape.
        in_float32: the reference's, computed in float32. In a run below float64, its error also counts as rounding:
            the error of a sine grows with the angle.

    Returns:
        The error in units of float32's rounding; infinite if an integer, a NaN or an infinity differs.
    """
    if own.dtype.kind != "f" or exact.dtype.kind != "f":
        return 0.0 if np.array_equal(own, exact) else np.inf
    finite = np.isfinite(exact)
    if not np.array_equal(np.isfinite(own), finite) or not np.array_equal(own[~finite], exact[~finite], equal_nan=True):
        return np.inf
    values, truth = own[finite].astype(np.float64), exact[finite].astype(np.float64)
    errors = np.abs(values - truth)
    noise = np.abs(in_float32[finite] - truth) if own.dtype != np.float64 else np.zeros_like(truth)
    units = UNIT * _rounding_scales(values, truth)
    is_plain = np.abs(truth) < MASK_SIZE
    units[is_plain] = np.maximum(units[is_plain], noise[is_plain].max(initial=0.0))
    wrong = errors > 0
    with np.errstate(divide="ignore"):
        return float((errors[wrong] / units[wrong]).max(initial=0.0))


def _rounding_scales(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the size of the number whose rounding each element has, (n,) float64."""
    sizes = np.abs(truth)
    largest = sizes[sizes < MASK_SIZE].max(initial=0.0)
    scales = np.clip(largest, sizes, MAX_SCALE * sizes)
    # What cancellation leaves of numbers as large as the largest: a sine of pi is 1e-16 or 1e-8 instead of 0.
    is_residue = np.maximum(np.abs(values), sizes) <= 16 * UNIT * largest
    return np.where(is_residue, largest, scales)
