"""Faults of its port."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.mutants.fault import read_faults
from toolkit.parity.mutants.shared_faults import PRECISION as PRECISION
from toolkit.parity.mutants.shared_faults import TRAINING

CATALOGUE = (*read_faults(Path(__file__).with_name("faults.yaml")), *TRAINING)
LOOPS = ()
