"""Faults of Reformer's port."""

from __future__ import annotations

from toolkit.parity.families.reformer.family import NOTHING_AHEAD
from toolkit.parity.families.reformer.faults.attention import ATTENTION
from toolkit.parity.families.reformer.faults.batch import BATCH, hash_in_bfloat16
from toolkit.parity.families.reformer.faults.decoding import DECODING
from toolkit.parity.families.reformer.faults.draws import DRAWS
from toolkit.parity.families.reformer.faults.evaluation import EVALUATION
from toolkit.parity.families.reformer.faults.layers import MAPS, STREAMS
from toolkit.parity.families.reformer.faults.settings import SETTINGS
from toolkit.parity.families.reformer.faults.token_labels import TOKEN_LABELS
from toolkit.parity.families.reformer.faults.tokenizer import TOKENIZER
from toolkit.parity.mutants import initialisation, loading
from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.loops import SHARED_LOOPS, below_the_noise
from toolkit.parity.mutants.precision import PRECISION as SHARED
from toolkit.parity.mutants.trainer import TRAINER
from toolkit.parity.mutants.training import TRAINING

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
    *MAPS,
    *ATTENTION,
    *STREAMS,
    *BATCH,
    *EVALUATION,
    *SETTINGS,
    *DRAWS,
    *TRAINING,
    *TRAINER,
    *TOKENIZER,
    *LOADING,
    *INITIALISATION,
)

#: Faults of another head than that of the trials.
OF_HEADS = {"token_classification": TOKEN_LABELS, "causal_lm": DECODING}
#: Keys of the trials' configuration that a head changes.
KEYS_OF_HEADS = {"causal_lm": {"is_decoder": True, **NOTHING_AHEAD}}

#: Faults in bfloat16.
PRECISION = (
    *SHARED,
    Mutant(
        "bfloat16-hashing",
        "LSH hashing in bfloat16",
        "buckets:",
        hash_in_bfloat16,
        "reformer",
        operation="buckets:",
        dtype="bfloat16",
    ),
)

#: Faults below float32's noise, named by the loop itself.
LOOPS = (*SHARED_LOOPS, *below_the_noise("attend_chunks", "add_on_grid"))
