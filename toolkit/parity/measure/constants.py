"""Error of a port's precomputed constants (position tables, buffers) in units of rounding.

The truth is the reference's constant.
"""

from __future__ import annotations

import numpy as np

#: Unit of rounding of float32: half the distance from 1 to the next number.
UNIT = 2.0**-24
#: Largest factor between an element and the number whose rounding is its unit. That number is the table's largest
#: number, which may take part in the element's computation, but a wrong small element would hide behind a larger unit.
MAX_SCALE = 1024.0
#: Smallest magnitude that counts as the value of a mask (-1e4, -1e9). Other elements are not computed from it.
MASK_SIZE = 1e3


def measure_angle_error(own: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest error of a position table, in units of rounding of each position's angle.

    The unit is 2^-24 times the position, or 2^-24 for the first position. The error is infinite if shape or dtype
    differs.

    Args:
        own: the port's table, (positions, width).
        exact: the reference's table, (positions, width).
    """
    if own.shape != exact.shape or own.dtype != exact.dtype:
        return float("inf")
    angles = np.maximum(np.arange(len(own), dtype=np.float64), 1.0)[:, None]
    return float((np.abs(own.astype(np.float64) - exact) / (UNIT * angles)).max())


def measure_table_error(own: np.ndarray, exact: np.ndarray, float32_table: np.ndarray) -> float:
    """Return the largest error of a buffer's elements, each in units of the element's rounding.

    Args:
        own: the port's buffer, computed in the dtype of the run.
        exact: the reference's buffer of the same shape, computed in float64.
        float32_table: the reference's buffer, computed in float32. In a run below float64, its error also counts as
            rounding: the error of a sine grows with the angle.

    Returns:
        The error in units of float32's rounding; infinite if an integer, a NaN or an infinity differs.
    """
    if own.dtype.kind != "f" or exact.dtype.kind != "f":
        return 0.0 if np.array_equal(own, exact) else np.inf
    finite = np.isfinite(exact)
    if not np.array_equal(np.isfinite(own), finite) or not np.array_equal(own[~finite], exact[~finite], equal_nan=True):
        return np.inf
    numbers, truth = own[finite].astype(np.float64), exact[finite].astype(np.float64)
    errors = np.abs(numbers - truth)
    noise = np.abs(float32_table[finite] - truth) if own.dtype != np.float64 else np.zeros_like(truth)
    units = UNIT * _choose_scales(numbers, truth)
    is_plain = np.abs(truth) < MASK_SIZE
    units[is_plain] = np.maximum(units[is_plain], noise[is_plain].max(initial=0.0))
    is_wrong = errors > 0
    with np.errstate(divide="ignore"):
        return float((errors[is_wrong] / units[is_wrong]).max(initial=0.0))


def _choose_scales(numbers: np.ndarray, true_value: np.ndarray) -> np.ndarray:
    """Return, for each element, the number whose rounding is the element's unit, float64 (n,).

    Args:
        numbers: the port's finite elements, float64 (n,).
        true_value: the reference's elements, float64 (n,).
    """
    sizes = np.abs(true_value)
    largest = sizes[sizes < MASK_SIZE].max(initial=0.0)
    scales = np.clip(largest, sizes, MAX_SCALE * sizes)
    # Cancellation leaves residues of numbers as large as the largest: a sine of pi is 1e-16 or 1e-8 instead of 0.
    is_residue = np.maximum(np.abs(numbers), sizes) <= 16 * UNIT * largest
    return np.where(is_residue, largest, scales)
