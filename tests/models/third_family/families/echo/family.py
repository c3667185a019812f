"""What the gate knows of it without running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.parity.job.family import Defaults, PortedFamily, TokenizerKind


class Echo(PortedFamily):
    """Echo."""

    defaults = Defaults(head="causal_lm", layers=2, length=24, batch_size=5)
    tokenizers = (TokenizerKind("bytes", "ByteTokenizer", holds=lambda folder: True, offsets=True),)
    example = "breadth=16"
    last_maps = ("mix",)
    short_names: Mapping[str, str] = {"body.": ""}

    def make_synthetic_config(self, head: str, attention: str, layers: int, length: int) -> dict[str, Any]:
        return {"echoes": layers, "reach": max(256, length)}


FAMILY = Echo("echo")
