"""Its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from models.echo.family import FAMILY

from models.port.weights import (
    Parameter,
    draw_values,
    dump,
    layer_norm_parameters,
    linear_parameters,
    load,
    select_tensors,
)

__all__ = ["HEADS", "dump", "load"]

HEADS = FAMILY.heads
#: The maps that LoRA adapts by default.
LORA_TARGETS = ("mix",)


def parameters(config: Mapping, head: str) -> dict[str, Parameter]:
    """Name -> shape and role, in execution order."""
    width = config["breadth"]
    table = {"body.tokens.weight": Parameter((config["vocab_size"], width), "embedding")}
    for index in range(config["echoes"]):
        table |= {
            **layer_norm_parameters(f"body.echo.{index}.norm", width),
            **linear_parameters(f"body.echo.{index}.mix", width, width),
        }
    outputs = config["vocab_size"] if head == "causal_lm" else config["num_labels"]
    return {**table, **linear_parameters("lm_head" if head == "causal_lm" else "classifier", width, outputs)}


def num_layers(config: Mapping) -> int:
    """The number of layers."""
    return config["echoes"]


def standard_deviations(config: Mapping) -> dict[str, float]:
    """Role -> standard deviation of its new values."""
    return dict.fromkeys(("linear", "embedding"), config["initializer_range"])


def initial_values(config: Mapping, head: str, seed: int) -> Mapping[str, np.ndarray]:
    """New weights, each made on access."""
    return draw_values(parameters(config, head), standard_deviations(config), seed)


def initial_weights(config: Mapping, head: str, seed: int) -> dict[str, np.ndarray]:
    """New weights."""
    return dict(initial_values(config, head, seed))


def select(tensors: Iterable[tuple[str, np.ndarray]], config: Mapping, head: str) -> dict[str, np.ndarray]:
    """The checkpoint's tensors of the model with ``head``."""
    others = {name for other in HEADS if other != head for name in parameters(config, other)}
    return select_tensors(tensors, parameters(config, head), others, "body.")
