"""Scores and separate losses in a model's output, in addition to its loss."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Attributes of a model's output that hold scores.
LOGITS = ("logits", "start_logits", "end_logits")


def scores_of(output: Any) -> dict[str, np.ndarray]:
    """Return the scores and separate losses in a model's output by name, as NumPy arrays."""
    return {name: value.numpy() for name, value in score_tensors(output).items()}


def score_tensors(output: Any) -> dict[str, Any]:
    """Return the scores in a model's output and the losses that its loss is the sum of, by name.

    The names are ``logits``, ``start_logits``, ``end_logits``, ``logits:NAME`` and ``losses:NAME``.
    """
    scores = {name: getattr(output, name) for name in LOGITS if getattr(output, name, None) is not None}
    scores |= {f"logits:{name}": value for name, value in getattr(output, "scores", {}).items()}
    return scores | {f"losses:{name}": loss for name, loss in getattr(output, "losses", {}).items()}
