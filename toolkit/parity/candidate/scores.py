"""Outputs of a port's head besides the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Names of these outputs.
LOGITS = ("logits", "start_logits", "end_logits")


def scores_of(output: Any) -> dict[str, np.ndarray]:
    """Return the scores in a model's output, by their names."""
    return {name: value.numpy() for name, value in score_tensors(output).items()}


def score_tensors(output: Any) -> dict[str, Any]:
    """Return the scores, and the losses that a loss is the sum of, by their names."""
    scores = {name: getattr(output, name) for name in LOGITS if getattr(output, name, None) is not None}
    scores |= {f"logits:{name}": value for name, value in getattr(output, "scores", {}).items()}
    return scores | {f"losses:{name}": loss for name, loss in getattr(output, "losses", {}).items()}
