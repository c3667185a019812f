"""What CTRL's port needs beside what every model does: its position table, and layers that are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from paddle import nn

from models.ctrl import modeling
from models.ctrl.config import CTRLConfig
from toolkit.parity.candidate.places import line_of, place_of_code
from toolkit.parity.candidate.step import PLAIN, Step
from toolkit.parity.job.results import Place

#: The constant, under the name of the attribute that holds it on both sides.
TABLE = "transformer.pos_encoding"


class CTRLStep(Step):
    """A step of CTRL."""

    backwards = (PLAIN, "recompute")
    embedded = "transformer.dropout"

    def build(self, kind: type, keys: Mapping[str, Any], backward: str) -> nn.Layer:
        model = kind(CTRLConfig(**keys))
        model.transformer.enable_recompute = backward == "recompute"
        return model

    def places(self) -> dict[str, Place]:
        called = line_of(modeling.CTRLModel.forward, r"\brecompute\(") or ""
        return {
            **super().places(),
            "recomputed": Place("layers that are computed again", called),
            TABLE: table_place(),
        }

    def take_constants(self, constants: Mapping[str, np.ndarray]) -> dict[str, float]:
        own = self.model.transformer.pos_encoding
        self.model.hold_constants(constants)
        return {TABLE: table_error(own, constants[TABLE])}


def table_place() -> Place:
    """Where the port computes its position table."""
    return place_of_code("position_table", modeling.position_table)


def table_error(own: np.ndarray, theirs: np.ndarray) -> float:
    """How far two position tables (positions, width) lie apart, in units of rounding of the angle: 2^-24 times the
    position, or times 1 for the first. Infinite for tables of different shape or dtype."""
    if own.shape != theirs.shape or own.dtype != theirs.dtype:
        return float("inf")
    angles = np.maximum(np.arange(len(own), dtype=np.float64), 1.0)[:, None]
    return float((np.abs(own.astype(np.float64) - theirs) / (2.0**-24 * angles)).max())


STEP = CTRLStep
