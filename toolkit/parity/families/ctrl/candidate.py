"""Parts of the port's step that only CTRL needs: its position table, and recomputed layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from paddle import nn

from models.ctrl import layers, modeling
from models.ctrl.config import CTRLConfig
from models.ctrl.continuation import Continuation
from models.ctrl.modeling import CTRLLMHeadModel
from toolkit.parity.candidate.places import decoding_places, line_of, place_of_code
from toolkit.parity.candidate.ported import PortedStep
from toolkit.parity.candidate.step import Measure
from toolkit.parity.job.results import Place
from toolkit.parity.measure.evaluation import DECODING, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import append_number

#: Number of the decoding call whose scores come from the layers themselves.
BY_LAYERS = 3
#: The constant, under the name of the attribute that holds it on both sides.
TABLE = "transformer.pos_encoding"


class CTRLStep(PortedStep):
    """A step of CTRL."""

    again = "recompute"
    embedded = "transformer.dropout"

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        return not settings.get("recompute")

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
            **decoding_places(Continuation, [BY_LAYERS]),
        }

    def take_constants(self, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        own = self.model.transformer.pos_encoding
        self.model.hold_constants(constants)
        return {TABLE: own}

    def decode(self, measure: Measure) -> None:
        if not isinstance(self.model, CTRLLMHeadModel):
            return
        first, *others = split_for_decoding(self.batch)
        whole = self.model(**first).logits.numpy()
        begun, go_on = self.model.begin(**first)
        whole[:, -1] = begun.numpy()  # all that generation computes is compared, and the positions before it
        measure(name_in_run(DECODING, "logits"), whole)
        # A token is computed in three ways: for one text alone, by the layers (as with an adapter), and for several
        # texts. Each has its turn, the last two with their cache of the tokens before.
        _, alone = self.model.begin(**_first_text(first))
        past: Any = list(go_on.past)
        for number, inputs in enumerate(others, 2):
            by_layers = self.model(**inputs, past_key_values=past, use_cache=True)
            past = by_layers.past_key_values
            logits = go_on(inputs["input_ids"], inputs["attention_mask"][:, -1:]).numpy()
            if number == 2:
                one = _first_text(inputs)
                logits[:1] = alone(one["input_ids"], one["attention_mask"][:, -1:]).numpy()
            elif number == BY_LAYERS:
                logits = by_layers.logits[:, -1].numpy()
            measure(append_number(name_in_run(DECODING, "logits"), number), logits[:, None])

    def generate(self) -> None:
        self.decode(lambda *_: None)


def _first_text(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first row of each tensor (B, ...)."""
    return {name: tensor[:1] for name, tensor in inputs.items()}


def table_place() -> Place:
    """Return the place where the port computes its position table."""
    return place_of_code("position_table", layers.position_table)


STEP = CTRLStep
