"""Faults of a loss whose classes have weights or whose labels are smoothed, which a job without cannot show. They are
the same for every model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toolkit.parity.mutants.fault import Mutant


def _weights(port, change: Callable):
    """Let the loss take ``change(weights)`` for its class weights."""
    plain = port.losses.classification

    def classification(config, logits, labels, weights=None, smoothing=0.0):
        return plain(config, logits, labels, None if weights is None else change(weights))

    return [(port.losses, "classification", classification)]


def _reversed(weights):
    return weights[::-1].copy()


def _over_the_count(port):
    """Divide the weighted losses by their number."""
    plain = port.losses.weighted_cross_entropy

    def cross_entropy(logits, labels, weights):
        return plain(logits, labels, weights) * port.paddle.gather(weights, labels).mean().astype(logits.dtype)

    return [(port.losses, "weighted_cross_entropy", cross_entropy)]


def _over_the_weights(port):
    """Divide the loss of several labels by their weights, not by their number."""
    plain = port.losses.classification

    def classification(config, logits, labels, weights=None, smoothing=0.0):
        loss = plain(config, logits, labels, weights)
        if weights is None:
            return loss
        weighed = 1 + labels * (port.paddle.to_tensor(weights).astype(labels.dtype) - 1)
        return loss / weighed.mean()

    return [(port.losses, "classification", classification)]


def _weighs_the_negatives(port):
    """Let labels that a text lacks weigh as much as labels that it has."""
    plain = port.losses.classification

    def classification(config, logits, labels, weights=None, smoothing=0.0):
        if weights is None:
            return plain(config, logits, labels)
        weighed = port.paddle.to_tensor(weights).astype(logits.dtype)
        return port.paddle.nn.functional.binary_cross_entropy_with_logits(logits, labels, weight=weighed)

    return [(port.losses, "classification", classification)]


def _in_evaluation(port):
    return [(port.base.Port, "loss_settings", property(lambda self: (self.class_weights, self.label_smoothing)))]


def _accumulated_by_count(port):
    """Weigh a micro-batch by its number of examples, not by their weights."""
    return [(port.trainer.Finetuner, "num_loss_terms", lambda self, batch: self.task.num_loss_terms(batch))]


def _smoothing(port, change: Callable):
    """Let the loss take ``change(smoothing, classes)`` for its smoothing."""
    plain = port.losses.smoothed_cross_entropy

    def cross_entropy(logits, labels, smoothing, weights=None):
        return plain(logits, labels, change(smoothing, logits.shape[-1]), weights)

    return [(port.losses, "smoothed_cross_entropy", cross_entropy)]


def _spread_evenly(port):
    """Spread the same over all classes, whatever these weigh."""
    plain = port.losses.smoothed_cross_entropy

    def cross_entropy(logits, labels, smoothing, weights=None):
        spread = port.paddle.nn.functional.log_softmax(logits, axis=-1).mean()
        return plain(logits, labels, 0.0, weights) * (1 - smoothing) - smoothing * spread

    return [(port.losses, "smoothed_cross_entropy", cross_entropy)]


_loss = partial(Mutant, expected="loss", operation="loss")

#: Faults by the configuration's ``problem_type``.
CLASS_WEIGHTS: dict[str, tuple[Mutant, ...]] = {
    "single_label_classification": (
        _loss("class-weights-ignored", "class weights are ignored", apply=lambda p: _weights(p, lambda given: None)),
        _loss("class-weights-order", "class weights are in the opposite order", apply=lambda p: _weights(p, _reversed)),
        _loss(
            "class-weights-over-count",
            "the weighted losses are averaged over their count, not over their weights",
            apply=_over_the_count,
        ),
        Mutant(
            "class-weights-in-evaluation", "the loss of evaluation is weighed, too", "evaluation/loss", _in_evaluation
        ),
        Mutant(
            "class-weights-accumulated-by-count",
            "micro-batches count by their examples, not by what these weigh",
            "updated:",
            _accumulated_by_count,
        ),
    ),
    "multi_label_classification": (
        _loss(
            "label-weights-ignored", "weights of labels are ignored", apply=lambda p: _weights(p, lambda given: None)
        ),
        _loss(
            "label-weights-order", "weights of labels are in the opposite order", apply=lambda p: _weights(p, _reversed)
        ),
        _loss(
            "label-weights-of-all",
            "weights of labels are those of texts without them, too",
            apply=_weighs_the_negatives,
        ),
        _loss("label-weights-divided", "the loss is divided by the weights of its labels", apply=_over_the_weights),
    ),
}

LABEL_SMOOTHING: tuple[Mutant, ...] = (
    _loss("smoothing-ignored", "labels are not smoothed", apply=lambda p: _smoothing(p, lambda share, classes: 0.0)),
    _loss(
        "smoothing-over-the-others",
        "a label's share is spread over the other classes alone",
        apply=lambda p: _smoothing(p, lambda share, classes: share * classes / (classes - 1)),
    ),
    _loss("smoothing-unweighted", "what is spread has no class weights", apply=_spread_evenly),
    Mutant("smoothing-in-evaluation", "labels are smoothed in evaluation, too", "evaluation/loss", _in_evaluation),
)
