"""Configuration of the Reformer port: Hugging Face's keys, plus two settings of the port itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from paddlenlp.transformers import PretrainedConfig

from models.hub import resolve_folder
from models.reformer import schema

#: Settings of this port that are no part of the model, and so of no ``config.json``.
BACKWARD = ("reversible", "autograd")
RESIDUAL = ("wide", "plain")


class ReformerConfig(PretrainedConfig):
    """The keys of ``transformers.ReformerConfig``, each one honoured or rejected by name (:mod:`.schema`).

    Args:
        backward: ``reversible`` recomputes activations from the outputs (Kitaev et al. 2020, section 3), so that memory
            does not grow with depth; ``autograd`` stores them.
        residual: ``wide`` carries the two residual streams in twice the precision of the layers, so that subtracting
            a layer's output recovers its input even where the streams grow large; ``plain`` adds as the reference.
        keys: Hugging Face's.

    Raises:
        models.reformer.schema.ConfigError: an unknown key or a wrong value; ``.key`` names it.
    """

    model_type = "reformer"

    def __init__(self, backward: str = "reversible", residual: str = "wide", **keys: Any) -> None:
        if backward not in BACKWARD:
            raise schema.ConfigError("backward", f"{backward!r} is none of {', '.join(BACKWARD)}")
        if residual not in RESIDUAL:
            raise schema.ConfigError("residual", f"{residual!r} is none of {', '.join(RESIDUAL)}")
        super().__init__(**schema.resolve(keys))
        self.backward = backward
        self.residual = residual

    @classmethod
    def from_pretrained(cls, folder_or_id: str | os.PathLike, **overrides: Any) -> ReformerConfig:
        """The configuration in a Hugging Face folder or hub repository, with ``overrides`` on top.

        Raises:
            FileNotFoundError: no ``config.json`` there.
            models.reformer.schema.ConfigError: as the constructor.
        """
        with open(resolve_folder(folder_or_id) / "config.json") as file:
            stored = json.load(file)
        if "num_labels" in overrides or "id2label" in overrides:
            stored = {key: value for key, value in stored.items() if key not in ("num_labels", "id2label", "label2id")}
        return cls(**{**stored, **overrides})

    def to_hf(self) -> dict[str, Any]:
        """The honoured keys as a Hugging Face ``config.json`` holds them."""
        keys = {key: getattr(self, key) for key in schema.DEFAULTS if key != "num_labels"}
        keys["id2label"] = {str(index): name for index, name in self.id2label.items()}
        return {**keys, "model_type": self.model_type, "num_hidden_layers": len(self.attn_layers)}

    def save_pretrained(self, folder: str | os.PathLike, **_: Any) -> None:
        """Write ``config.json`` into ``folder``, in Hugging Face's form."""
        keys = {**self.to_hf(), "architectures": self.architectures}
        Path(folder, "config.json").write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n")
