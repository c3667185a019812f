"""Training loss with class weights or smoothed labels.

No model of the reference supports them, so the loss is torch's loss of the model's logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def weighted_loss(
    logits: torch.Tensor, labels: torch.Tensor, class_weights: Sequence[float] | None, smoothing: float = 0.0
) -> torch.Tensor:
    """Return torch's loss of the model's logits with class weights or label smoothing, a scalar tensor.

    Several labels for each text give a binary cross entropy with ``pos_weight``, otherwise the loss is a cross entropy.

    Args:
        logits: scores of the classes, (B, classes).
        labels: class of each text, int64 (B,). For several labels of a text, 0 or 1 for each class, (B, classes), in
            the dtype of the logits.
        class_weights: weight of each class; None for equal weights.
        smoothing: share of each label that is spread over all classes, for texts with a single label.
    """
    weights = None
    if class_weights is not None:
        weights = torch.tensor(class_weights, dtype=logits.dtype, device=logits.device)
    if labels.is_floating_point():
        return torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, labels)
    return torch.nn.CrossEntropyLoss(weight=weights, label_smoothing=smoothing)(logits, labels)
