"""Training loss with class weights or smoothed labels: no model of the reference supports them, so torch's own loss is
taken on its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def weighted_loss(
    logits: torch.Tensor, labels: torch.Tensor, class_weights: Sequence[float] | None, smoothing: float = 0.0
) -> torch.Tensor:
    """Return torch's weighted loss on the model's logits, a scalar, as transformers' users train with class weights.

    Args:
        logits: (B, labels).
        labels: int64 (B,) classes; or several labels per text, (B, labels) of 0 and 1 in the logits' dtype.
        class_weights: one per label; None for equal weights.
        smoothing: share of each label that is spread over all, where a text has one.
    """
    weights = None
    if class_weights is not None:
        weights = torch.tensor(class_weights, dtype=logits.dtype, device=logits.device)
    if labels.is_floating_point():
        return torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, labels)
    return torch.nn.CrossEntropyLoss(weight=weights, label_smoothing=smoothing)(logits, labels)
