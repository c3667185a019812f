"""Faults of Reformer's port."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.families.reformer.family import NOTHING_AHEAD
from toolkit.parity.mutants import draws, initialisation, loading
from toolkit.parity.mutants.fault import read_faults
from toolkit.parity.mutants.loops import SHARED_LOOPS, below_the_noise
from toolkit.parity.mutants.shared import PRECISION as SHARED_PRECISION
from toolkit.parity.mutants.shared import TRAINER, TRAINING

FAULTS = Path(__file__).with_name("faults")
LAYERS, ATTENTION, STREAMS, BATCH, EVALUATION, SETTINGS, DRAWS, TOKENIZER = (
    read_faults(FAULTS / f"{kind}.yaml")
    for kind in ("layers", "attention", "streams", "batch", "evaluation", "settings", "draws", "tokenizer")
)
MASKS = draws.mask_faults("", "reformer", lambda port: port.modeling.ReformerModel)
INITIALISATION = (
    *initialisation.faults(
        "reformer",
        "word_embeddings",
        "layers.0.attention.self_attention.query",
        "layers.0.feed_forward.dense.dense.bias",
        "layers.0.attention.layer_norm",
    ),
    initialisation.named(
        "reformer",
        "positions-as-matrices",
        "axial positions as wide as matrices",
        "position_embeddings.weights.0",
        initialisation.width_of("axial", lambda own: own["linear"]),
    ),
)
LOADING = loading.faults("reformer", ".query.", ".key.", ".layers.", "layers.0.attention.layer_norm", "word_embeddings")

#: All faults that the gate is tried with.
CATALOGUE = (
    *LAYERS,
    *ATTENTION,
    *STREAMS,
    *BATCH,
    *EVALUATION,
    *SETTINGS,
    *MASKS,
    *DRAWS,
    *TRAINING,
    *TRAINER,
    *TOKENIZER,
    *LOADING,
    *INITIALISATION,
)

#: Faults of another head than that of the trials.
OF_HEADS = {
    "token_classification": read_faults(FAULTS / "token_labels.yaml"),
    "causal_lm": read_faults(FAULTS / "decoding.yaml"),
}
#: Keys of the trials' configuration that a head changes.
KEYS_OF_HEADS = {"causal_lm": {"is_decoder": True, **NOTHING_AHEAD}}

#: Faults in bfloat16.
PRECISION = (*SHARED_PRECISION, *read_faults(FAULTS / "precision.yaml"))

#: Faults below float32's noise, named by the loop itself.
LOOPS = (*SHARED_LOOPS, *below_the_noise("attend_chunks", "add_on_grid"))
