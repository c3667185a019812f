"""What is known of a pair before it is described."""

from __future__ import annotations

from toolkit.parity.job.family import Family
from toolkit.parity.job.pair import PAIR

FAMILY = Family(PAIR)
