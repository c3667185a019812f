"""The faults of CTRL's port that the gate's trials inject."""

from __future__ import annotations

from pathlib import Path

from toolkit.parity.mutants import draws, initialization, loading
from toolkit.parity.mutants.fault import read_faults
from toolkit.parity.mutants.loops import SHARED_LOOPS, faults_below_noise
from toolkit.parity.mutants.shared_faults import PRECISION as PRECISION
from toolkit.parity.mutants.shared_faults import TRAINER, TRAINING

#: Folder of the YAML files with faults.
FAULTS = Path(__file__).with_name("faults")
#: Faults of each kind, from the YAML file with its name.
LAYERS, BATCH, EVALUATION, DRAWS, TOKENIZER = (
    read_faults(FAULTS / f"{kind}.yaml") for kind in ("layers", "batch", "evaluation", "draws", "tokenizer")
)
#: Faults of the dropout masks.
MASKS = draws.mask_faults("ctrl-", "ctrl", lambda port: port.modeling.CTRLModel)
#: Faults of newly initialized weights.
INITIALISATION = (
    *initialization.initialization_faults(
        "ctrl", "transformer.w", "h.0.multi_head_attention.Wq", "Wq.bias", "h.0.layernorm1"
    ),
    initialization.initialization_fault(
        "ctrl",
        "width-fixed",
        "0.02 wide whatever initializer_range says",
        "transformer.w",
        initialization.change_widths(lambda config, widths: dict.fromkeys(widths, 0.02)),
    ),
)
#: Faults of the conversion of a checkpoint.
LOADING = loading.loading_faults("ctrl", ".Wq.", ".Wk.", ".h.", "h.0.layernorm1", "transformer.w")
#: All faults that the trials inject, one at a time.
CATALOGUE = (*LAYERS, *BATCH, *EVALUATION, *MASKS, *DRAWS, *TRAINING, *TRAINER, *TOKENIZER, *LOADING, *INITIALISATION)
#: Faults of compiled loops that are smaller than the float32 noise of a step.
LOOPS = (*SHARED_LOOPS, *faults_below_noise("softmax_rows"))
