"""Formulas of Paddle's CPU kernels in float64, with the numbers that the kernels hold in float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

#: torch's names of the interpolations whose forward computes source positions in float64. All others compute the
#: positions in float32.
POSITIONS_IN_FLOAT64 = ("upsample_linear1d", "upsample_bicubic2d")
#: The parameter of the cubic convolution (Keys 1981) in both frameworks.
CUBIC = -0.75


@dataclass(frozen=True)
class InterpolatedAxis:
    """One axis of an interpolation, such as the height of an image.

    Attributes:
        operation: torch's name of the interpolation, such as `upsample_bilinear2d`.
        is_backward: whether the weights are for the backward.
        number: number of the axis, counted from 0 for the first interpolated axis.
        length: number of elements along the axis.
        target_length: number of interpolated elements along the axis.
        align_corners: whether the first and the last elements of both lengths lie at the same positions.
        scale: the factor that the caller gave for this axis; None if the caller gave a size.
    """

    operation: str
    is_backward: bool
    number: int
    length: int
    target_length: int
    align_corners: bool
    scale: float | None = None

    def weights(self) -> np.ndarray:
        """Return Paddle's interpolation matrix of the axis, (length, target_length), in float64."""
        positions = self._source_positions()
        if self.operation == "upsample_bicubic2d":
            first = np.floor(positions)
            past = positions - first
            factors = [_outer_cubic(past + 1), _inner_cubic(past), _inner_cubic(1 - past), _outer_cubic(2 - past)]
            first -= 1
        else:
            positions = np.maximum(positions, 0)
            first = np.floor(positions)
            past = positions - first
            is_exact = self.operation == "upsample_linear1d" and not self.is_backward
            factors = [1 - past if is_exact else np.float32(1) - past.astype(np.float32), past]
        weights = np.zeros((self.length, self.target_length))
        for offset, factor in enumerate(factors):
            rows = np.clip(first.astype(int) + offset, 0, self.length - 1)
            np.add.at(weights, (rows, np.arange(self.target_length)), factor)
        return weights

    def _source_positions(self) -> np.ndarray:
        """Return the position of each interpolated element among the axis' elements, (target_length,), float64."""
        targets = np.arange(self.target_length)
        if self.align_corners:
            ratio = np.float32((self.length - 1) / (self.target_length - 1) if self.target_length > 1 else 0)
            return (ratio * targets.astype(np.float32)).astype(np.float64)
        ratio = np.float32(1 / self.scale if self.scale else self.length / self.target_length)
        exact = float(ratio) * (targets + 0.5) - 0.5
        if self.operation in POSITIONS_IN_FLOAT64 and not self.is_backward:
            return exact
        if self.operation == "upsample_bilinear2d" and self.number == 0 and not self.is_backward:
            return exact.astype(np.float32).astype(np.float64)  # a fused multiplication and subtraction
        return (ratio * (targets + 0.5).astype(np.float32) - np.float32(0.5)).astype(np.float64)


def _inner_cubic(distances: np.ndarray) -> np.ndarray:
    """Return the weights of cubic convolution for elements at distances from 0 to 1."""
    return ((CUBIC + 2) * distances - (CUBIC + 3)) * distances**2 + 1


def _outer_cubic(distances: np.ndarray) -> np.ndarray:
    """Return the weights of cubic convolution for elements at distances from 1 to 2."""
    return ((CUBIC * distances - 5 * CUBIC) * distances + 8 * CUBIC) * distances - 4 * CUBIC


def smooth_labels(labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return smoothed labels, (..., classes), as Paddle's kernel computes them.

    The kernel holds both 1 - smoothing and smoothing / classes in float32.

    Args:
        labels: probabilities of the classes, (..., classes).
        smoothing: share of each label that is spread over all classes.
    """
    rounded_smoothing = np.float32(smoothing)
    return float(np.float32(1) - rounded_smoothing) * labels + float(rounded_smoothing / np.float32(labels.shape[-1]))


def cross_entropy_of_soft_labels(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of scores and soft labels, (...), with the gradient of Paddle's kernel.

    The gradient of the scores is the softmax less the labels. Paddle's kernel has this gradient even if the labels of
    an example do not add up to 1.

    Args:
        scores: scores of the classes, (..., classes).
        labels: probabilities of the classes, (..., classes).
    """
    normalizer = scores.logsumexp(-1)
    missing = 1 - labels.sum(-1)
    return missing * (normalizer - normalizer.detach()) - (labels * scores.log_softmax(-1)).sum(-1)
