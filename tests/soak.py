"""Number of repetitions in the suite: a few by default, all with ``SOAK=1 make test-slow``, which takes hours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

#: Whether the suite runs all repetitions.
WHOLE = os.environ.get("SOAK") == "1"


def times(usual_count: int, soak_count: int) -> int:
    """Return the number of random trials."""
    return soak_count if WHOLE else usual_count


def some(cases: Sequence[Case], step: int = 2) -> list[Case]:
    """Return every ``step``-th of similar cases, or all in a soak."""
    return list(cases)[:: 1 if WHOLE else step]
