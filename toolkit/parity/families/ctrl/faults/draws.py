"""Faults of the draws of CTRL's port."""

from __future__ import annotations

from toolkit.parity.mutants import draws
from toolkit.parity.mutants.fault import Mutant

DRAWS: tuple[Mutant, ...] = (
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
