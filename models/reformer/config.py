"""Configuration of the Reformer port, with Hugging Face's keys and two settings of the port."""

from __future__ import annotations

from typing import Any

from models.port.base import PortConfig
from models.port.schema import ConfigError

#: Values of the two settings of this port. They are not settings of the model, so no ``config.json`` has them.
BACKWARD = ("reversible", "autograd")
RESIDUAL = ("wide", "plain")


class ReformerConfig(PortConfig):
    """The keys of ``transformers.ReformerConfig`` (:mod:`.schema`).

    Args:
        backward: ``reversible`` recomputes activations from the outputs (Kitaev et al. 2020, section 3), so that memory
            does not grow with depth; ``autograd`` stores them.
        residual: ``wide`` computes the two residual streams in twice the precision of the layers, so that subtracting
            a layer's output recovers its input even if the streams grow large; ``plain`` adds like the reference.
        keys: Hugging Face's configuration keys.
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
        """Return the configuration with Hugging Face's keys, including ``num_hidden_layers``."""
        return {**super().to_hf(), "num_hidden_layers": len(self.attn_layers)}


CONFIG_CLASS = ReformerConfig
