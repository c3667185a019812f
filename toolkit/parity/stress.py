"""Weights and batches on which a fault cannot hide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.reformer import schema
from models.reformer.weights import parameters
from models.weights import generator

KINDS = ("random", "heavy-tailed", "large-gains")


def stir(weights: Mapping[str, np.ndarray], seed: int) -> tuple[dict[str, np.ndarray], int]:
    """Give every parameter whose values are all equal small random ones, and count them.

    New weights have zero biases and unit norm gains: a port that drops a bias, or swaps two gains, computes the same. A
    trained checkpoint has none of these and comes back as it is.
    """
    stirred, count = {}, 0
    for name, value in weights.items():
        if value.size > 1 and (value == value.flat[0]).all():
            value = value + np.float32(0.1) * generator(seed, f"stir:{name}").standard_normal(value.shape, np.float32)
            count += 1
        stirred[name] = value.astype(np.float32)
    return stirred, count


def stress_weights(config: Mapping, head: str, seed: int, kind: str = "random") -> dict[str, np.ndarray]:
    """Weights that show what trained ones do to rounding, without a download.

    Args:
        config: a resolved configuration.
        kind: ``random``: normal, of the configuration's width. ``heavy-tailed``: Student's t with 3 degrees of freedom,
            whose outliers amplify rounding as trained weights do. ``large-gains``: norm gains of standard deviation 8,
            matrices four times as wide, and blocks whose output grows from layer to layer, as in some trained
            Reformers: attention saturates, and the residual streams end 10^6 times as large as they began.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    weights = {}
    for name, (shape, role) in parameters(config, head).items():
        draw = generator(seed, f"{kind}:{name}")
        normal = draw.standard_normal(shape, np.float32)
        if role in ("norm_bias", "bias"):
            value = 0.1 * normal
        elif role == "norm_gain":
            value = 8.0 * normal if kind == "large-gains" else 1.0 + 0.2 * normal
        elif kind == "heavy-tailed":
            value = 2 * config["initializer_range"] * draw.standard_t(3, shape)
        else:
            width = config["axial_norm_std"] if role == "axial" else config["initializer_range"]
            value = width * normal * (_growth(config, name) if kind == "large-gains" and role == "linear" else 1.0)
        weights[name] = np.asarray(value, np.float32)
    return weights


def _growth(config: Mapping, name: str) -> float:
    """How much wider a matrix is under ``large-gains``: 4, and in a block's last map up to 10^6 in the last layer."""
    layer = re.fullmatch(r"reformer\.encoder\.layers\.(\d+)\..*\.output\.dense\.weight", name)
    depth = len(config["attn_layers"])
    return 4.0 * 10.0 ** (5.0 * int(layer[1]) / max(1, depth - 1)) if layer else 4.0


def random_batch(
    config: Mapping[str, Any], head: str, batch_size: int, length: int, seed: int
) -> dict[str, np.ndarray]:
    """Random tokens; every example after the first ends in padding (the second one for most of its length, so that some
    positions see nothing but padding), and some labels are to be ignored."""
    resolved = schema.resolve(config)
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, resolved["vocab_size"], (batch_size, length))
    ends = np.array([length, length // 4, *draw.integers(length // 2, length, batch_size)])[:batch_size]
    mask = (np.arange(length) < ends[:, None]).astype(np.int64)
    batch = {"input_ids": tokens, "attention_mask": mask}
    if head == "sequence_classification":
        return {**batch, "labels": draw.integers(0, resolved["num_labels"], batch_size)}
    hidden = (draw.random(tokens.shape) < 0.1) | (mask == 0)
    return {**batch, "labels": np.where(hidden, -100, tokens)}
