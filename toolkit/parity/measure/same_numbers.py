"""What two outputs of a pair have in common if their shapes or their numbers differ: rows, columns or single numbers.

A layer may get its tokens in another order, without padding, or as one side of a router passes them on. Its output then
holds the same numbers at other places.
"""

from __future__ import annotations

import numpy as np

#: What two outputs have in common: rows (vectors along the last axis) in another order, or all rows of one among the
#: other's; the columns, in one other order for all rows; or all numbers of one among the other's.
ROWS, COLUMNS, NUMBERS, NOTHING = "rows", "columns", "numbers", ""
#: Outputs with fewer different numbers may have them in common by chance.
FEWEST = 4
#: Units in the last place of the largest number beyond which two numbers differ by more than rounding.
ROUNDING_UNITS = 2.0**10


def find_common_part(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Return what two outputs have in common: :data:`ROWS`, :data:`COLUMNS`, :data:`NUMBERS` or :data:`NOTHING`.

    Two numbers are the same if they differ by less than half of the digits of the less accurate array. This decides
    only whether the same numbers are meant. Their errors are judged elsewhere.
    """
    floats = ours.dtype.kind == theirs.dtype.kind == "f"
    if not (floats and ours.ndim and theirs.ndim and ours.size and theirs.size):
        return NOTHING
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()) or len(np.unique(theirs)) < FEWEST:
        return NOTHING
    unit = max(float(np.finfo(one.dtype).eps) for one in (ours, theirs))
    within = float(np.abs(theirs).max()) * unit**0.5
    ours, theirs = (one.astype(np.float64).reshape(-1, one.shape[-1]) for one in (ours, theirs))
    if ours.shape[1] == theirs.shape[1] and _are_among(ours, theirs, within):
        return ROWS
    if ours.shape == theirs.shape and _are_among(ours.T, theirs.T, within):
        return COLUMNS
    numbers = (ours.reshape(-1, 1), theirs.reshape(-1, 1))
    is_part = ours.size != theirs.size and len(np.unique(min(numbers, key=len))) >= FEWEST
    return NUMBERS if is_part and _are_among(*numbers, within) else NOTHING


def count_unread_differences(ours: np.ndarray, theirs: np.ndarray, unread: np.ndarray, common_part: str) -> int:
    """Return how many numbers of an output differ although the loss does not depend on them.

    Args:
        ours, theirs, unread: arrays of one shape; ``unread`` marks the elements that the loss does not depend on.
        common_part: common part of the two outputs (:func:`in_common`). A row or column that is only in another order
            counts if the loss depends on none of its numbers.
    """
    within = ROUNDING_UNITS * float(np.finfo(ours.dtype).eps) * float(np.abs(theirs).max())
    differs = ~(np.abs(ours - theirs) <= within)
    if common_part in (ROWS, COLUMNS):
        axis = -1 if common_part == ROWS else tuple(range(theirs.ndim - 1))
        return int((differs.any(axis) & unread.all(axis)).sum())
    return int((differs & unread).sum())


def _are_among(first: np.ndarray, second: np.ndarray, within: float) -> bool:
    """Return whether all rows of the shorter of two matrices are rows of the longer; if they are equally long, each
    row has a different counterpart."""
    few, many = sorted((first, second), key=len)
    direction = np.random.default_rng(0).standard_normal(few.shape[1])
    projections = many @ direction
    order = np.argsort(projections)
    if len(few) == len(many):
        return bool((np.abs(few[np.argsort(few @ direction)] - many[order]) <= within).all())
    places = np.searchsorted(projections[order], few @ direction)
    near = [np.clip(places + shift, 0, len(many) - 1) for shift in (-1, 0)]
    return bool(np.logical_or(*[(np.abs(few - many[order[place]]) <= within).all(1) for place in near]).all())
