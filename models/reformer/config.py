"""Configuration of the Reformer port: Hugging Face's keys, plus two settings of the port itself."""

from __future__ import annotations

from typing import Any

from models.port.base import PortConfig
from models.port.schema import ConfigError

#: Settings of this port, not of the model, and so in no ``config.json``.
BACKWARD = ("reversible", "autograd")
RESIDUAL = ("wide", "plain")


class ReformerConfig(PortConfig):
    """The keys of ``transformers.ReformerConfig`` (:mod:`.schema`).

    Args:
        backward: ``reversible`` recomputes activations from the outputs (Kitaev et al. 2020, section 3), so that memory
            does not grow with depth; ``autograd`` stores them.
        residual: ``wide`` carries the two residual streams in twice the precision of the layers, so that subtracting
            a layer's output recovers its input even where the streams grow large; ``plain`` adds as the reference.
        keys: Hugging Face's.
    """

    model_type = "reformer"

    def __init__(self, backward: str = "reversible", residual: str = "wide", **keys: Any) -> None:
        if backward not in BACKWARD:
            raise ConfigError("backward", f"{backward!r} is none of {', '.join(BACKWARD)}")
        if residual not in RESIDUAL:
            raise ConfigError("residual", f"{residual!r} is none of {', '.join(RESIDUAL)}")
        super().__init__(**keys)
        self.backward = backward
        self.residual = residual

    def to_hf(self) -> dict[str, Any]:
        return {**super().to_hf(), "num_hidden_layers": len(self.attn_layers)}


CONFIG_CLASS = ReformerConfig
