"""Outputs of a port's head besides the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Names of these outputs.
LOGITS = ("logits", "start_logits", "end_logits")


def scores_of(output: Any) -> dict[str, np.ndarray]:
    """The scores in a model's output, by their names."""
    return {name: getattr(output, name).numpy() for name in LOGITS if getattr(output, name, None) is not None}
