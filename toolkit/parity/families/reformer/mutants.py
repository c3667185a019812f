"""The faults of Reformer's port that the gate's trials inject."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.families.reformer.family import NOTHING_AHEAD
from toolkit.parity.mutants import draws, initialization, loading
from toolkit.parity.mutants.fault import read_faults
from toolkit.parity.mutants.loops import SHARED_LOOPS, faults_below_noise
from toolkit.parity.mutants.shared_faults import PRECISION as SHARED_PRECISION
from toolkit.parity.mutants.shared_faults import TRAINER, TRAINING

#: Folder of the YAML files with faults.
FAULTS = Path(__file__).with_name("faults")
#: Faults of each kind, from the YAML file with its name.
LAYERS, ATTENTION, STREAMS, BATCH, EVALUATION, SETTINGS, DRAWS, TOKENIZER = (
    read_faults(FAULTS / f"{kind}.yaml")
    for kind in ("layers", "attention", "streams", "batch", "evaluation", "settings", "draws", "tokenizer")
)
#: Faults of the dropout masks.
MASKS = draws.mask_faults("", "reformer", lambda port: port.modeling.ReformerModel)
#: Faults of newly initialized weights.
INITIALISATION = (
    *initialization.initialization_faults(
        "reformer",
        "word_embeddings",
        "layers.0.attention.self_attention.query",
        "layers.0.feed_forward.dense.dense.bias",
        "layers.0.attention.layer_norm",
    ),
    initialization.initialization_fault(
        "reformer",
        "positions-as-matrices",
        "axial positions as wide as matrices",
        "position_embeddings.weights.0",
        initialization.change_width("axial", lambda widths: widths["linear"]),
    ),
)
#: Faults of the conversion of a checkpoint.
LOADING = loading.loading_faults(
    "reformer", ".query.", ".key.", ".layers.", "layers.0.attention.layer_norm", "word_embeddings"
)
#: All faults that the trials inject, one at a time.
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
#: Faults by head, for heads that :mod:`.trial` does not use.
OF_HEADS = {
    "token_classification": read_faults(FAULTS / "token_labels.yaml"),
    "causal_lm": read_faults(FAULTS / "decoding.yaml"),
}
#: Configuration keys that the trials of a head override.
KEYS_OF_HEADS = {"causal_lm": {"is_decoder": True, **NOTHING_AHEAD}}
#: Faults that change results only in bfloat16.
PRECISION = (*SHARED_PRECISION, *read_faults(FAULTS / "precision.yaml"))
#: Faults of compiled loops that are smaller than the float32 noise of a step.
LOOPS = (*SHARED_LOOPS, *faults_below_noise("attend_chunks", "add_on_grid"))
