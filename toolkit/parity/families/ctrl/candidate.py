"""The step of CTRL's port: its position table, its recomputed layers and its three ways to decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from paddle import nn

from models.ctrl import layers, modeling
from models.ctrl.config import CTRLConfig
from models.ctrl.continuation import Continuation
from models.ctrl.modeling import CTRLLMHeadModel
from toolkit.parity.candidate.family_step import PortedStep
from toolkit.parity.candidate.places import decoding_places, line_of, place_of_code
from toolkit.parity.candidate.step import Measure
from toolkit.parity.exchange.results import Place
from toolkit.parity.measure.evaluation import DECODING, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import append_number

#: Number of the decoding call whose logits come from the model's layers instead of the loops of generation.
BY_LAYERS = 3
#: Name of the constant position table: the path of its attribute in both models.
POSITION_TABLE = "transformer.pos_encoding"


class CTRLStep(PortedStep):
    """A forward and a backward of CTRL's port, with the reference's weights, batch and draws."""

    recomputing_backward = "recompute"
    embedding_module = "transformer.dropout"

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings of the port keeps all activations, without recomputing layers."""
        return not settings.get("recompute")

    def build(self, model_class: type, config: Mapping[str, Any], backward: str) -> nn.Layer:
        """Return CTRL's port.

        Args:
            model_class: class of the port.
            config: keys and values of the configuration.
            backward: `recompute` to compute each layer again in the backward, or `autograd`.
        """
        model = model_class(CTRLConfig(**config))
        model.transformer.enable_recompute = backward == "recompute"
        return model

    def places(self) -> dict[str, Place]:
        """Return the source locations of the port's modules, its recomputation, position table and decoding."""
        recompute_line = line_of(modeling.CTRLModel.forward, r"\brecompute\(") or ""
        return {
            **super().places(),
            "recomputed": Place("layers that are computed again", recompute_line),
            POSITION_TABLE: find_table_place(),
            **decoding_places(Continuation, [BY_LAYERS]),
        }

    def take_constants(self, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replace the port's position table by the reference's, and return the port's own table by name."""
        own_table = self.model.transformer.pos_encoding
        self.model.hold_constants(constants)
        return {POSITION_TABLE: own_table}

    def decode(self, measure: Measure) -> None:
        """Measure the logits of a text that is decoded token by token, in each way that the port can decode.

        Only a language model decodes. The first call computes the beginning of the text, and each further call one
        token.

        Args:
            measure: function that receives the name and value of each tensor.
        """
        if not isinstance(self.model, CTRLLMHeadModel):
            return
        first_inputs, *later_inputs = split_for_decoding(self.batch)
        first_logits = self.model(**first_inputs).logits.numpy()
        last_logits, continue_all = self.model.begin(**first_inputs)
        first_logits[:, -1] = last_logits.numpy()  # the last position, from generation, and the positions before
        measure(name_in_run(DECODING, "logits"), first_logits)
        # A token can be computed in three ways: for a single text, by the layers (as with an adapter), and for several
        # texts. Each way is compared. The last two ways continue from the cache of the earlier tokens.
        _, continue_first = self.model.begin(**_first_text(first_inputs))
        past: Any = list(continue_all.past)
        for number, inputs in enumerate(later_inputs, 2):
            layers_output = self.model(**inputs, past_key_values=past, use_cache=True)
            past = layers_output.past_key_values
            logits = continue_all(inputs["input_ids"], inputs["attention_mask"][:, -1:]).numpy()
            if number == 2:
                first_text = _first_text(inputs)
                logits[:1] = continue_first(first_text["input_ids"], first_text["attention_mask"][:, -1:]).numpy()
            elif number == BY_LAYERS:
                logits = layers_output.logits[:, -1].numpy()
            measure(append_number(name_in_run(DECODING, "logits"), number), logits[:, None])


def _first_text(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first row of each tensor, (B, ...) -> (1, ...)."""
    return {name: tensor[:1] for name, tensor in inputs.items()}


def find_table_place() -> Place:
    """Return the source location of the port's code that computes the position table."""
    return place_of_code("position_table", layers.position_table)


#: Class of the step of CTRL's port.
STEP = CTRLStep
