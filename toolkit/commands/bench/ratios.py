"""Ratios of measurements taken in turn, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: Least confidence of an interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs.

    Attributes:
        median: of the pairs' ratios.
        low, high: an interval that holds the true median of such pairs with :data:`CONFIDENCE`; (0, inf) if too few.
        pairs: number of pairs.
    """

    median: float
    low: float
    high: float
    pairs: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 1; only then is one side called faster."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        interval = "too few pairs for an interval" if math.isinf(self.high) else f"{self.low:.2f} to {self.high:.2f}"
        said = f"{self.median:.2f} ({interval})"
        return said if self.decided else f"{said}: no difference"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of two sides measured in turn.

    The interval is that of the sign test, from the k-th smallest to the k-th largest ratio: it assumes nothing about
    the times' distribution (Conover 1999, Practical Nonparametric Statistics, section 3.2).

    Args:
        ours, theirs: seconds of each pair.

    Raises:
        ValueError: no pair, or sides of unequal length.
    """
    found = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    count = len(found)
    if not count:
        raise ValueError("no pairs were measured")
    place = _place(count)
    low, high = (0.0, math.inf) if place is None else (found[place], found[-1 - place])
    return Ratio(median(found), low, high, count)


def _place(count: int) -> int | None:
    """The largest k whose (k+1)-th smallest and largest bound the median with :data:`CONFIDENCE`; None if none does."""
    outside, place = 0.0, None
    for k in range(count // 2):
        outside += 2 * math.comb(count, k) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        place = k
    return place
