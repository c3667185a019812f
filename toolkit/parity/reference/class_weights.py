"""The loss of training where classes have weights: no model of the reference has any, so torch's own loss is taken on
its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def weighted_loss(logits: torch.Tensor, labels: torch.Tensor, class_weights: Sequence[float]) -> torch.Tensor:
    """As transformers' users train with class weights: its model's logits and the weighted loss of torch, a scalar.

    Args:
        logits: (B, labels).
        labels: int64 (B,) classes; or several labels a text, (B, labels) of 0 and 1 in the dtype of the logits.
        class_weights: by label.
    """
    weights = torch.tensor(class_weights, dtype=logits.dtype, device=logits.device)
    if labels.is_floating_point():
        return torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, labels)
    return torch.nn.CrossEntropyLoss(weight=weights)(logits, labels)
