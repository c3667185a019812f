"""The gate's facts about a pair before its two files are run: only the defaults of :class:`.job.family.Family`."""

from __future__ import annotations

from toolkit.parity.job.family import Family
from toolkit.parity.job.pair import PAIR

#: The gate's facts about any pair.
FAMILY = Family(PAIR)
