"""Names that belong to each stage where CTRL is compared stage by stage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolkit.parity.job import stages

#: Tensors that people publish, so that the distance between the two float32 runs is measured as well: the hidden
#: states, the scores and the loss.
SHOWN = re.compile(r"output:transformer\.(h\.\d+|layernorm)|logits|loss")


def weights_of(stage: str, names: Iterable[str]) -> list[str]:
    """Return the parameters of a forward stage."""
    if stage == stages.EMBEDDING:
        return [name for name in names if name == "transformer.w.weight"]
    if stage == stages.HEAD:
        return [name for name in names if name.startswith(("transformer.layernorm.", "lm_head."))]
    prefix = f"transformer.h.{stages.layer_of(stage)}."
    return [name for name in names if name.startswith(prefix)]
