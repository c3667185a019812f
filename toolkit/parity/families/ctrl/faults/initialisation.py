"""Faults of a CTRL's new weights."""

from __future__ import annotations

from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.initialisation import faults, named, widths_of

INITIALISATION: tuple[Mutant, ...] = (
    *faults("ctrl", "transformer.w", "h.0.multi_head_attention.Wq", "Wq.bias", "h.0.layernorm1"),
    named(
        "ctrl",
        "width-fixed",
        "0.02 wide whatever initializer_range says",
        "transformer.w",
        widths_of(lambda config, widths: dict.fromkeys(widths, 0.02)),
    ),
)
