"""Faults of CTRL's port."""

from __future__ import annotations

from toolkit.parity.families.ctrl.faults.batch import BATCH
from toolkit.parity.families.ctrl.faults.evaluation import EVALUATION
from toolkit.parity.families.ctrl.faults.layers import LAYERS
from toolkit.parity.families.ctrl.faults.tokenizer import TOKENIZER
from toolkit.parity.mutants import draws, initialisation, loading
from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.loops import SHARED_LOOPS, below_the_noise
from toolkit.parity.mutants.precision import PRECISION as SHARED
from toolkit.parity.mutants.trainer import TRAINER
from toolkit.parity.mutants.training import TRAINING

DRAWS = (
    *draws.faults("ctrl-", "ctrl", lambda p: p.modeling.CTRLModel),
    *draws.backwards("ctrl-", "ctrl", "h.2.layernorm2", "transformer.h.2.dropout2"),
    Mutant(
        "ctrl-dropout-unscaled",
        "what dropout keeps is not scaled by 1/(1-p)",
        "output:transformer.dropout",
        lambda p: draws.keep(p, draws.unscaled, draws.unscaled),
        "ctrl",
        operation="output:transformer.dropout",
    ),
)
INITIALISATION = (
    *initialisation.faults("ctrl", "transformer.w", "h.0.multi_head_attention.Wq", "Wq.bias", "h.0.layernorm1"),
    initialisation.named(
        "ctrl",
        "width-fixed",
        "0.02 wide whatever initializer_range says",
        "transformer.w",
        initialisation.widths_of(lambda config, widths: dict.fromkeys(widths, 0.02)),
    ),
)
LOADING = loading.faults("ctrl", ".Wq.", ".Wk.", ".h.", "h.0.layernorm1", "transformer.w")

#: All faults that the gate is tried with.
CATALOGUE = (*LAYERS, *BATCH, *EVALUATION, *DRAWS, *TRAINING, *TRAINER, *TOKENIZER, *LOADING, *INITIALISATION)
#: Faults in bfloat16.
PRECISION = SHARED

#: Faults below float32's noise, named by the loop itself.
LOOPS = (*SHARED_LOOPS, *below_the_noise("softmax_rows"))
