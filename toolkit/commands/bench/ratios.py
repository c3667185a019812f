"""Ratios of measurements that two sides took in turn, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: Minimum confidence of an interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """The ratio of the port's time to the other side's time.

    Attributes:
        median: median of the ratios of all pairs.
        low: lower end of the interval that contains the true median with :data:`CONFIDENCE`; 0 for too few pairs.
        high: upper end of the interval; infinity for too few pairs.
        pairs: number of pairs.
    """

    median: float
    low: float
    high: float
    pairs: int

    @property
    def is_decided(self) -> bool:
        """Whether the interval excludes 1. Only then one side is called faster."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        interval = "too few pairs for an interval" if math.isinf(self.high) else f"{self.low:.2f} to {self.high:.2f}"
        text = f"{self.median:.2f} ({interval})"
        return text if self.is_decided else f"{text}: no difference"


def compute_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of two sides measured in turn.

    The sign test gives the interval, from the k-th smallest to the k-th largest ratio. It assumes nothing about the
    distribution of the times (Conover 1999, Practical Nonparametric Statistics, section 3.2).

    Args:
        ours: seconds of the port in each pair.
        theirs: seconds of the other side in each pair.

    Raises:
        ValueError: there are zero pairs, or the sides have different lengths.
    """
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    count = len(ratios)
    if not count:
        raise ValueError("no pairs were measured")
    index = _interval_index(count)
    low, high = (0.0, math.inf) if index is None else (ratios[index], ratios[-1 - index])
    return Ratio(median(ratios), low, high, count)


def _interval_index(count: int) -> int | None:
    """Return the index of the lower end of the interval in ``count`` sorted ratios; None for too few ratios.

    The index k is as large as possible while the (k+1)-th smallest and the (k+1)-th largest ratio enclose the median
    with :data:`CONFIDENCE`.
    """
    outside, index = 0.0, None
    for k in range(count // 2):
        outside += 2 * math.comb(count, k) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        index = k
    return index
