"""What the gate knows of CTRL without running it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.parity.job.family import Defaults, PortedFamily, TokenizerKind
from toolkit.parity.job.family_part import family_part


class CTRL(PortedFamily):
    """CTRL (Keskar et al. 2019). The made-up layout is that of Salesforce/ctrl, its own defaults."""

    recomputed = "recomputed layers"
    pads_left = True
    #: Each 100 tokens of all 48 layers take 0.2 GB of logits in float64, several times.
    defaults = Defaults(head="causal_lm", layers=48, length=54, batch_size=5)
    tokenizers = (TokenizerKind("ctrl", "CTRLTokenizer", files=("vocab.json", "merges.txt")),)
    example = "dff=1024"
    smaller = "--layers 4 n_embd=320 dff=1024 vocab_size=5000"
    last_maps = ("attention.dense", "ffn.2")
    short_names: Mapping[str, str] = {"transformer.": ""}

    def made_up(self, head: str, attention: str, layers: int, length: int) -> dict[str, Any]:
        return {"n_layer": layers, "n_positions": max(256, length), "pad_token_id": 0}

    def goes_by_stages(self, config: Mapping[str, Any], head: str) -> bool:
        return head == "causal_lm" and self.is_large(config, head)

    def depth(self, config: Mapping[str, Any]) -> int:
        return self.resolved(config)["n_layer"]

    def weights_of(self, stage: str, names: Iterable[str]) -> list[str]:
        return family_part(self.name, "stage_names").weights_of(stage, names)

    def is_shown(self, name: str) -> bool:
        return family_part(self.name, "stage_names").SHOWN.fullmatch(name) is not None

    def stage_elements(self, config: Mapping[str, Any]) -> tuple[int, int]:
        keys = self.resolved(config)
        width = keys["n_embd"]
        return keys["vocab_size"] * width, 4 * width**2 + 2 * width * keys["dff"]


FAMILY = CTRL("ctrl")
