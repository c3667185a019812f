"""Faults of a Reformer's new weights."""

from __future__ import annotations

from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.initialisation import faults, named, widths_of

INITIALISATION: tuple[Mutant, ...] = (
    *faults(
        "reformer",
        "word_embeddings",
        "layers.0.attention.self_attention.query",
        "layers.0.feed_forward.dense.dense.bias",
        "layers.0.attention.layer_norm",
    ),
    named(
        "reformer",
        "positions-as-matrices",
        "axial positions as wide as matrices",
        "position_embeddings.weights.0",
        widths_of(lambda config, widths: {**widths, "axial": widths["linear"]}),
    ),
)
