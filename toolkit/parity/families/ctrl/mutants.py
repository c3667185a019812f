"""Faults of CTRL's port."""

from __future__ import annotations

from toolkit.parity.families.ctrl.faults.batch import BATCH
from toolkit.parity.families.ctrl.faults.draws import DRAWS
from toolkit.parity.families.ctrl.faults.evaluation import EVALUATION
from toolkit.parity.families.ctrl.faults.initialisation import INITIALISATION
from toolkit.parity.families.ctrl.faults.layers import LAYERS
from toolkit.parity.families.ctrl.faults.tokenizer import TOKENIZER
from toolkit.parity.mutants import loading
from toolkit.parity.mutants.loops import below_the_noise
from toolkit.parity.mutants.precision import PRECISION as SHARED
from toolkit.parity.mutants.trainer import TRAINER
from toolkit.parity.mutants.training import TRAINING

LOADING = loading.faults("ctrl", ".Wq.", ".Wk.", ".h.", "h.0.layernorm1", "transformer.w")

#: All faults that the gate is tried with.
CATALOGUE = (
    *LAYERS,
    *BATCH,
    *EVALUATION,
    *DRAWS,
    *TRAINING,
    *TRAINER,
    *TOKENIZER,
    *LOADING,
    *INITIALISATION,
)
#: Faults in bfloat16.
PRECISION = SHARED

#: Faults below float32's noise, named by the loop itself.
LOOPS = below_the_noise(
    "softmax_rows", "cross_entropy_rows", "cross_entropy_rows_backward", "norm_rows", "norm_rows_backward"
)
