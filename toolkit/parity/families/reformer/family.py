"""The gate's facts about Reformer that need no framework: configurations, tokenizers and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from models.families import part
from toolkit.parity.job.family import BenchSettings, Defaults, PortedFamily, TokenizerKind

#: Common keys of :data:`LAYOUT` and :data:`BENCH_CONFIG`.
SHAPE = {
    "hidden_size": 256,
    "attention_head_size": 64,
    "feed_forward_size": 512,
    "axial_pos_embds_dim": [64, 192],
    "hidden_dropout_prob": 0.05,
    "local_attention_probs_dropout_prob": 0.05,
    "lsh_attention_probs_dropout_prob": 0.05,
}
#: Layout of google/reformer-crime-and-punishment, with every kind of dropout, several hash rounds and more neighboring
#: chunks.
LAYOUT = {
    **SHAPE,
    "num_attention_heads": 2,
    "num_hashes": 2,
    "local_num_chunks_before": 2,
    "local_num_chunks_after": 1,
    "lsh_num_chunks_after": 1,
}
#: Configuration of `toolkit bench`, without the keys that depend on the number of layers and the length.
BENCH_CONFIG = {**SHAPE, "num_attention_heads": 4, "vocab_size": 320}
#: Configuration keys of a causal model: no chunks after the current chunk are attended to.
NOTHING_AHEAD = {"local_num_chunks_after": 0, "lsh_num_chunks_after": 0}


class Reformer(PortedFamily):
    """Reformer (Kitaev, Kaiser, Levskaya 2020) in the gate."""

    recomputed_parts = "reversible backward"
    #: The length has 5 chunks of attention, and each chunk attends to fewer chunks.
    defaults = Defaults(head="sequence_classification", layers=6, length=320, batch_size=3)
    tokenizers = (
        TokenizerKind("sentencepiece", "ReformerTokenizer", "from_file", ("spiece.model",), offsets=True),
        TokenizerKind(
            "bytes",
            "ByteTokenizer",
            holds=lambda folder: part("reformer", "tokenizer").has_byte_tokenizer(folder),
            offsets=True,
        ),
    )
    attentions: Mapping[str, list[str]] = {"mixed": ["local", "lsh"], "local": ["local"], "lsh": ["lsh"]}
    bench = BenchSettings(
        defaults=Defaults(head="sequence_classification", layers=6, length=1024, batch_size=4),
        lengths=[256, 512, 1024, 2048],
        depths=[2, 6, 12],
        tokenizer=("sentencepiece", 320),  # as many pieces as the published tokenizer has
    )
    own_backward = True
    example = "num_hashes=4"
    last_maps = ("output.dense",)
    short_names: Mapping[str, str] = {"reformer.encoder.layers.": "layers.", "reformer.": ""}

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete configuration for both workers, without the keys that follow from other keys."""
        keys = super().keys(config)
        del keys["num_hidden_layers"]  # it follows from attn_layers
        return keys

    def bench_config(self, layers: int, length: int) -> dict[str, Any]:
        """Return the configuration that `toolkit bench` measures, with alternating local and LSH attention.

        Args:
            layers: number of layers.
            length: number of tokens of each text.
        """
        kinds = ["local" if layer % 2 == 0 else "lsh" for layer in range(layers)]
        schema = part(self.name, "schema")
        config = {**BENCH_CONFIG, "attn_layers": kinds}
        num_buckets = schema.num_buckets(
            schema.resolve(config), max(length, 64)
        )  # transformers cannot choose it when it generates
        return {**config, "num_buckets": num_buckets}

    def keys_of_length(self, length: int) -> dict[str, Any]:
        """Return the configuration keys that depend on the length of the texts in tokens."""
        return {"max_position_embeddings": length}

    def chunk_length(self, config: Mapping[str, Any]) -> int:
        """Return the number that divides the length of a text: the least common multiple of all attention chunks."""
        return math.lcm(*part(self.name, "schema").chunk_lengths(config))

    def make_synthetic_config(self, head: str, attention: str, layers: int, length: int) -> dict[str, Any]:
        """Return a synthetic configuration, without the keys that depend on the length.

        Args:
            head: head of the model. A causal model has no chunks after the current chunk.
            attention: key of :attr:`attentions`: `mixed`, `local` or `lsh`.
            layers: number of layers.
            length: unused.
        """
        kinds = self.attentions[attention]
        config = {**LAYOUT, "attn_layers": [kinds[index % len(kinds)] for index in range(layers)]}
        return {**config, **(NOTHING_AHEAD if head == "causal_lm" else {})}

    def with_head(self, config: Mapping[str, Any], head: str) -> dict[str, Any]:
        """Return a configuration for a model with a head, which is a decoder only for the head `causal_lm`."""
        return {**config, "is_decoder": head == "causal_lm"}


#: The gate's facts about Reformer.
FAMILY = Reformer("reformer")
