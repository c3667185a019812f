"""CTRL's parameters: their names, shapes, roles, initial values, and selection from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from models.ctrl.family import FAMILY
from models.port.weights import (
    Parameter,
    WeightsError,
    draw_values,
    dump,
    layer_norm_parameters,
    linear_parameters,
    load,
    select_tensors,
)

__all__ = ["HEADS", "WeightsError", "dump", "initial_values", "initial_weights", "load", "parameters", "select"]

HEADS = FAMILY.heads

EMBEDDING = "transformer.w.weight"

#: The linear layers that LoRA adapts by default: all linear layers of the attention.
LORA_TARGETS = ("Wq", "Wk", "Wv", "dense")


def parameters(config: Mapping[str, Any], head: str) -> dict[str, Parameter]:
    """Return the parameters of the whole model by name, in the order of execution.

    Args:
        config: resolved configuration (``schema.resolve``), or another object with its keys.
        head: head of the model, one of :data:`HEADS`.
    """
    table = {EMBEDDING: Parameter((config["vocab_size"], config["n_embd"]), "embedding")}
    for index in range(config["n_layer"]):
        table.update(_layer_parameters(config, index))
    table.update(layer_norm_parameters("transformer.layernorm", config["n_embd"]))
    table.update(_head_parameters(config, head))
    return table


def _layer_parameters(config: Mapping[str, Any], index: int) -> dict[str, Parameter]:
    """Return the parameters of the layer with the given index by name."""
    width, inner = config["n_embd"], config["dff"]
    name = f"transformer.h.{index}"
    table = layer_norm_parameters(f"{name}.layernorm1", width)
    for projection in ("Wq", "Wk", "Wv", "dense"):
        table.update(linear_parameters(f"{name}.multi_head_attention.{projection}", width, width))
    table.update(layer_norm_parameters(f"{name}.layernorm2", width))
    table.update(linear_parameters(f"{name}.ffn.0", width, inner))
    table.update(linear_parameters(f"{name}.ffn.2", inner, width))
    return table


def _head_parameters(config: Mapping[str, Any], head: str) -> dict[str, Parameter]:
    """Return the parameters of a head by name."""
    if head == "causal_lm":
        bias = {"lm_head.bias": Parameter((config["vocab_size"],), "bias")}
        if config["tie_word_embeddings"]:
            return bias
        # Paddle stores this weight like an embedding, (vocabulary, n_embd), and not transposed like a linear weight.
        return {"lm_head.weight": Parameter((config["vocab_size"], config["n_embd"]), "embedding"), **bias}
    if head == "sequence_classification":
        return linear_parameters("classifier", config["n_embd"], config["num_labels"], has_bias=False)
    raise ValueError(f"{head!r} is none of {', '.join(HEADS)}")


def num_layers(config: Mapping[str, Any]) -> int:
    """Return the number of layers."""
    return config["n_layer"]


def standard_deviations(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the standard deviation of the initial values of each role, as in the reference."""
    return {"linear": config["initializer_range"], "embedding": config["initializer_range"]}


def initial_weights(config: Mapping[str, Any], head: str, seed: int) -> dict[str, np.ndarray]:
    """Return initial float32 values of all parameters by name.

    Matrices are normal with standard deviation ``initializer_range``, biases are 0, and norm gains are 1.

    Args:
        config: resolved configuration.
        head: head of the model, one of :data:`HEADS`.
        seed: seed of the random draws.
    """
    return dict(initial_values(config, head, seed))


def initial_values(config: Mapping[str, Any], head: str, seed: int) -> Mapping[str, np.ndarray]:
    """Return the values of :func:`initial_weights`, each computed on access."""
    return draw_values(parameters(config, head), standard_deviations(config), seed)


def select(tensors: Iterable[tuple[str, np.ndarray]], config: Mapping[str, Any], head: str) -> dict[str, np.ndarray]:
    """Return the checked tensors of a checkpoint for the model with ``head``, by name.

    From a checkpoint with another head, only the body is read. The caller then initializes the parameters of this head
    (:func:`initial_weights`) and reports them.

    Args:
        tensors: names and values of the checkpoint's tensors.
        config: resolved configuration.
        head: head of the model, one of :data:`HEADS`.

    Raises:
        WeightsError: a shape is wrong, a parameter of the body is missing, a tensor is unknown, or a tied output layer
            differs from the embedding.
    """
    other_parameters = {name for other in HEADS if other != head for name in parameters(config, other)}
    other_parameters.add("lm_head.weight")
    is_tied = config["tie_word_embeddings"] and head == "causal_lm"
    renamed_tensors = _rename_tensors(tensors, is_tied=is_tied)
    return select_tensors(renamed_tensors, parameters(config, head), other_parameters, "transformer.")


def _rename_tensors(tensors: Iterable[tuple[str, np.ndarray]], *, is_tied: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Add the prefix of the body to names without a prefix, and rename a tied output layer to the embedding."""
    for name, value in tensors:
        name = name if name.startswith(("transformer.", "lm_head.", "classifier.")) else f"transformer.{name}"
        yield EMBEDDING if is_tied and name == "lm_head.weight" else name, value
