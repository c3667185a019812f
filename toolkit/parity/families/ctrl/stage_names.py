"""Names of the parameters and published tensors of each stage, if CTRL is compared stage by stage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolkit.parity.exchange import stages

#: Pattern of the names of published tensors: hidden states, logits and loss. Only for these, the distance between
#: the float32 runs of both sides is measured, too.
PUBLISHED_NAMES = re.compile(r"output:transformer\.(h\.\d+|layernorm)|logits|loss")


def weights_of(stage: str, names: Iterable[str]) -> list[str]:
    """Return the names of the parameters of a forward stage.

    Args:
        stage: name of the stage: `embedding`, `layer-003` or `head`.
        names: names of all parameters.
    """
    if stage == stages.EMBEDDING:
        return [name for name in names if name == "transformer.w.weight"]
    if stage == stages.HEAD:
        return [name for name in names if name.startswith(("transformer.layernorm.", "lm_head."))]
    prefix = f"transformer.h.{stages.layer_of(stage)}."
    return [name for name in names if name.startswith(prefix)]
