"""Ranges of numbers for the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def equal_bins(values: Iterable[float], max_bins: int = 8) -> list[tuple[int, int]]:
    """Return ranges (first, last), both inclusive, that each contain about the same number of the integers.

    Args:
        values: integers to divide.
        max_bins: maximum number of ranges.
    """
    sorted_values = sorted(int(value) for value in values)
    if not sorted_values:
        return []
    count = min(max_bins, max(1, len(sorted_values) // 5))
    lasts = sorted({sorted_values[-(-len(sorted_values) * (index + 1) // count) - 1] for index in range(count)})
    firsts = [sorted_values[0], *(last + 1 for last in lasts[:-1])]
    return list(zip(firsts, lasts, strict=True))


def named_bins(values: Sequence[int], max_bins: int = 8) -> dict[str, list[int]]:
    """Return range of integers as text -> indices of the values in this range.

    Args:
        values: integers to divide.
        max_bins: maximum number of ranges.
    """
    bins: dict[str, list[int]] = {}
    for first, last in equal_bins(values, max_bins):
        name = str(first) if first == last else f"{first:,} to {last:,}"
        bins[name] = [index for index, value in enumerate(values) if first <= value <= last]
    return bins
