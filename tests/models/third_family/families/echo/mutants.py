"""Faults of its port."""

from __future__ import annotations

from toolkit.parity.mutants import batch, kernels
from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.precision import PRECISION as SHARED
from toolkit.parity.mutants.training import TRAINING

CATALOGUE = (
    *batch.faults(
        "echo-",
        "echo",
        body=lambda p: p.modeling.EchoModel,
        embedding=lambda p: (p.modeling.EchoModel, "tokens"),
        rows="gradient:lm_head.bias",
        tokens="gradient:body.tokens.weight",
        attention="echo.0",
    )[:3],
    Mutant("echo-bias-dropped", "maps without their bias", "echo.0.mix", kernels.bias_dropped, "echo"),
    *TRAINING,
)
PRECISION = SHARED
LOOPS = ()
