"""The gate's facts about CTRL that need no framework: configurations, tokenizers and stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.parity.job.family import BenchSettings, Defaults, PortedFamily, TokenizerKind
from toolkit.parity.job.family_part import family_part

#: Small configuration for `toolkit bench`. The released CTRL has n_embd=1280 dff=8192 n_layer=48 vocab_size=246534.
BENCH_CONFIG = {"n_embd": 320, "n_head": 4, "dff": 1280, "vocab_size": 5000, "pad_token_id": 0}


class CTRL(PortedFamily):
    """CTRL (Keskar et al. 2019) in the gate. Synthetic configurations have the layout of Salesforce/ctrl."""

    recomputed_parts = "recomputed layers"
    pads_left = True
    #: The length is small, because the logits of 100 tokens take 0.2 GB in float64, and several copies are needed.
    defaults = Defaults(head="causal_lm", layers=48, length=54, batch_size=5)
    tokenizers = (TokenizerKind("ctrl", "CTRLTokenizer", files=("vocab.json", "merges.txt")),)
    bench = BenchSettings(
        defaults=Defaults(head="causal_lm", layers=4, length=128, batch_size=4),
        lengths=[64, 128, 256],
        depths=[2, 4, 8],
        tokenizer=("bpe", 2000),
        overrides=BENCH_CONFIG,
        paddlenlp=(
            "CTRLConfig", "CTRLLMHeadModel", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "dff",
            "resid_pdrop", "embd_pdrop", "layer_norm_epsilon", "initializer_range", "pad_token_id",
        ),
    )  # fmt: skip
    example = "dff=1024"
    smaller = "--layers 4 n_embd=320 dff=1024 vocab_size=5000"
    last_maps = ("attention.dense", "ffn.2")
    short_names: Mapping[str, str] = {"transformer.": ""}

    def make_synthetic_config(self, head: str, attention: str, layers: int, length: int) -> dict[str, Any]:
        """Return a synthetic configuration.

        Args:
            head: unused.
            attention: unused.
            layers: number of layers.
            length: number of tokens of each text.
        """
        return {"n_layer": layers, "n_positions": max(256, length), "pad_token_id": 0}

    def bench_config(self, layers: int, length: int) -> dict[str, Any]:
        """Return the configuration that `toolkit bench` measures.

        Args:
            layers: number of layers.
            length: number of tokens of each text.
        """
        return {**BENCH_CONFIG, "n_layer": layers, "n_positions": max(256, length)}

    def is_compared_by_stages(self, config: Mapping[str, Any], head: str) -> bool:
        """Return whether a model is compared stage by stage: a large language model, not a classifier.

        Args:
            config: keys and values of the configuration.
            head: head of the model.
        """
        return head == "causal_lm" and self.is_large(config, head)

    def depth(self, config: Mapping[str, Any]) -> int:
        """Return the number of layers of a configuration."""
        return self.resolve_config(config)["n_layer"]

    def weights_of(self, stage: str, names: Iterable[str]) -> list[str]:
        """Return the names of the parameters of a forward stage.

        Args:
            stage: name of the stage: `embedding`, `layer-003` or `head`.
            names: names of all parameters.
        """
        return family_part(self.name, "stage_names").weights_of(stage, names)

    def is_shown(self, name: str) -> bool:
        """Return whether the report's curve of distances over depth includes a tensor.

        The curve has the output of each layer and of the last norm, the logits and the loss.
        """
        return family_part(self.name, "stage_names").PUBLISHED_NAMES.fullmatch(name) is not None

    def stage_elements(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return the number of parameters of the embedding, and of a layer."""
        keys = self.resolve_config(config)
        width = keys["n_embd"]
        return keys["vocab_size"] * width, 4 * width**2 + 2 * width * keys["dff"]


#: The gate's facts about CTRL.
FAMILY = CTRL("ctrl")
