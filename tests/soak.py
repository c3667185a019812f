"""What the suite repeats: a little each time, all of it with ``SOAK=1 make test-slow``, which takes hours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

#: Whether all is repeated.
WHOLE = os.environ.get("SOAK") == "1"


def times(few: int, many: int) -> int:
    """How often something is tried at random."""
    return many if WHOLE else few


def some(cases: Sequence[Case], step: int = 2) -> list[Case]:
    """Cases that show the same of different things: every ``step``-th of them."""
    return list(cases)[:: 1 if WHOLE else step]
