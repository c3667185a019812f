"""What the gate knows of CTRL without running it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.parity.job.family import BenchSettings, Defaults, PortedFamily, TokenizerKind
from toolkit.parity.job.family_part import family_part

#: A small one; its shape at full width is n_embd=1280 dff=8192 n_layer=48 vocab_size=246534.
BENCHED = {"n_embd": 320, "n_head": 4, "dff": 1280, "vocab_size": 5000, "pad_token_id": 0}


class CTRL(PortedFamily):
    """CTRL (Keskar et al. 2019). The made-up layout is that of Salesforce/ctrl, its own defaults."""

    recomputed = "recomputed layers"
    pads_left = True
    #: Each 100 tokens of all 48 layers take 0.2 GB of logits in float64, several times.
    defaults = Defaults(head="causal_lm", layers=48, length=54, batch_size=5)
    tokenizers = (TokenizerKind("ctrl", "CTRLTokenizer", files=("vocab.json", "merges.txt")),)
    bench = BenchSettings(
        defaults=Defaults(head="causal_lm", layers=4, length=128, batch_size=4),
        lengths=[64, 128, 256],
        depths=[2, 4, 8],
        tokenizer=("bpe", 2000),
        overrides=BENCHED,
        paddlenlp=(
            "CTRLConfig", "CTRLLMHeadModel", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "dff",
            "resid_pdrop", "embd_pdrop", "layer_norm_epsilon", "initializer_range", "pad_token_id",
        ),
    )  # fmt: skip
    example = "dff=1024"
    smaller = "--layers 4 n_embd=320 dff=1024 vocab_size=5000"
    last_maps = ("attention.dense", "ffn.2")
    short_names: Mapping[str, str] = {"transformer.": ""}

    def made_up(self, head: str, attention: str, layers: int, length: int) -> dict[str, Any]:
        return {"n_layer": layers, "n_positions": max(256, length), "pad_token_id": 0}

    def bench_config(self, layers: int, length: int) -> dict[str, Any]:
        return {**BENCHED, "n_layer": layers, "n_positions": max(256, length)}

    def goes_by_stages(self, config: Mapping[str, Any], head: str) -> bool:
        return head == "causal_lm" and self.is_large(config, head)

    def depth(self, config: Mapping[str, Any]) -> int:
        return self.resolve_config(config)["n_layer"]

    def weights_of(self, stage: str, names: Iterable[str]) -> list[str]:
        return family_part(self.name, "stage_names").weights_of(stage, names)

    def is_shown(self, name: str) -> bool:
        return family_part(self.name, "stage_names").SHOWN.fullmatch(name) is not None

    def stage_elements(self, config: Mapping[str, Any]) -> tuple[int, int]:
        keys = self.resolve_config(config)
        width = keys["n_embd"]
        return keys["vocab_size"] * width, 4 * width**2 + 2 * width * keys["dff"]


FAMILY = CTRL("ctrl")
