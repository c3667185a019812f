"""Common parts of two outputs of a pair that differ in shape or numbers: rows, columns or single numbers.

A layer may get its tokens in another order, without padding, or in the groups of a router. Its output then holds the
same numbers at other positions.
"""

from __future__ import annotations

import numpy as np

#: Common parts of two outputs. Rows are vectors along the last axis: the same rows in another order, or the rows of the
#: smaller output among the rows of the larger. Columns: the same columns in another order. Numbers: the numbers of the
#: smaller output among the numbers of the larger.
ROWS, COLUMNS, NUMBERS, NOTHING = "rows", "columns", "numbers", ""
#: Smallest number of different numbers in a compared output. Fewer numbers may occur in another output by chance.
MIN_DIFFERENT = 4
#: Units in the last place of the largest number beyond which two numbers differ by more than rounding.
ROUNDING_UNITS = 2.0**10


def find_common_part(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Return the common part of two outputs: :data:`ROWS`, :data:`COLUMNS`, :data:`NUMBERS` or :data:`NOTHING`.

    Two numbers are the same if they differ by less than half of the digits of the less accurate array. This decides
    only whether the same numbers are meant. Their errors are judged elsewhere.

    Args:
        ours: output of the port.
        theirs: output of the reference.
    """
    floats = ours.dtype.kind == theirs.dtype.kind == "f"
    if not (floats and ours.ndim and theirs.ndim and ours.size and theirs.size):
        return NOTHING
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()) or len(np.unique(theirs)) < MIN_DIFFERENT:
        return NOTHING
    epsilon = max(float(np.finfo(output.dtype).eps) for output in (ours, theirs))
    max_distance = float(np.abs(theirs).max()) * epsilon**0.5
    ours, theirs = (output.astype(np.float64).reshape(-1, output.shape[-1]) for output in (ours, theirs))
    if ours.shape[1] == theirs.shape[1] and _contains_rows(ours, theirs, max_distance):
        return ROWS
    if ours.shape == theirs.shape and _contains_rows(ours.T, theirs.T, max_distance):
        return COLUMNS
    numbers = (ours.reshape(-1, 1), theirs.reshape(-1, 1))
    is_part = ours.size != theirs.size and len(np.unique(min(numbers, key=len))) >= MIN_DIFFERENT
    return NUMBERS if is_part and _contains_rows(*numbers, max_distance) else NOTHING


def count_unread_differences(ours: np.ndarray, theirs: np.ndarray, unread: np.ndarray, common_part: str) -> int:
    """Return the number of differing elements of an output that the loss does not depend on.

    Args:
        ours: output of the port.
        theirs: output of the reference, of the same shape.
        unread: mask of the elements that the loss does not depend on, of the same shape.
        common_part: common part of the two outputs (:func:`find_common_part`). A row or column that is only in another
            order counts if the loss depends on none of its numbers.
    """
    max_distance = ROUNDING_UNITS * float(np.finfo(ours.dtype).eps) * float(np.abs(theirs).max())
    differs = ~(np.abs(ours - theirs) <= max_distance)
    if common_part in (ROWS, COLUMNS):
        axis = -1 if common_part == ROWS else tuple(range(theirs.ndim - 1))
        return int((differs.any(axis) & unread.all(axis)).sum())
    return int((differs & unread).sum())


def _contains_rows(first: np.ndarray, second: np.ndarray, max_distance: float) -> bool:
    """Return whether all rows of the shorter of two matrices are rows of the longer matrix.

    If both matrices have the same number of rows, each row has a separate counterpart.

    Args:
        first: matrix (rows, columns).
        second: matrix (rows, columns), with the same number of columns.
        max_distance: largest difference of two numbers that count as the same.
    """
    short, long = sorted((first, second), key=len)
    direction = np.random.default_rng(0).standard_normal(short.shape[1])
    projections = long @ direction
    order = np.argsort(projections)
    if len(short) == len(long):
        return bool((np.abs(short[np.argsort(short @ direction)] - long[order]) <= max_distance).all())
    positions = np.searchsorted(projections[order], short @ direction)
    neighbors = [np.clip(positions + shift, 0, len(long) - 1) for shift in (-1, 0)]
    is_near = [(np.abs(short - long[order[index]]) <= max_distance).all(1) for index in neighbors]
    return bool(np.logical_or(*is_near).all())
