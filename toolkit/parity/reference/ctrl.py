"""What the reference's CTRL needs beside what every model does: its position table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from transformers import CTRLConfig
from transformers.models.ctrl import modeling_ctrl

from toolkit.parity.reference.recorder import to_numpy
from toolkit.parity.reference.step import Step


class CTRLStep(Step):
    """A step of CTRL."""

    heads: ClassVar = {
        "causal_lm": modeling_ctrl.CTRLLMHeadModel,
        "sequence_classification": modeling_ctrl.CTRLForSequenceClassification,
    }
    embedded = "transformer.dropout"
    aliases: ClassVar = {"lm_head.weight": "transformer.w.weight"}

    def configuration(self, keys: Mapping) -> CTRLConfig:
        return CTRLConfig(**keys, use_cache=False)

    def constants(self) -> dict[str, np.ndarray]:
        """The position table: float32, computed when the model is made."""
        return {"transformer.pos_encoding": to_numpy(self.model.transformer.pos_encoding)}


STEP = CTRLStep
