"""Reformer's parameters: their names, shapes, roles, initial values, and selection from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

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
from models.reformer.family import FAMILY

__all__ = ["HEADS", "WeightsError", "dump", "initial_values", "initial_weights", "load", "parameters", "select"]

HEADS = FAMILY.heads

#: Constants that old checkpoints store as weights, and their required values.
MASK_CONSTANTS = {
    "mask_value_float16": -1e4,
    "mask_value_float32": -1e9,
    "self_mask_value_float16": -1e3,
    "self_mask_value_float32": -1e5,
}

#: Second names of parameters in the reference. A checkpoint may have either name, or both with equal values.
ALIASES = {"lm_head.decoder.bias": "lm_head.bias"}

#: The linear layers that LoRA adapts by default: all linear layers of the attention. LSH queries are also its keys.
LORA_TARGETS = ("query", "key", "query_key", "value", "attention.output.dense")


def parameters(config: Mapping[str, Any], head: str) -> dict[str, Parameter]:
    """Return the parameters of the whole model by name, in the order of execution.

    Args:
        config: resolved configuration (``schema.resolve``), or another object with its keys.
        head: head of the model, one of :data:`HEADS`.
    """
    width, inner = config["hidden_size"], config["feed_forward_size"]
    table: dict[str, Parameter] = {
        "reformer.embeddings.word_embeddings.weight": Parameter((config["vocab_size"], width), "embedding")
    }
    positions = "reformer.embeddings.position_embeddings"
    if config["axial_pos_embds"]:
        (rows, columns), (row_dim, column_dim) = config["axial_pos_shape"], config["axial_pos_embds_dim"]
        table[f"{positions}.weights.0"] = Parameter((rows, 1, row_dim), "axial")
        table[f"{positions}.weights.1"] = Parameter((1, columns, column_dim), "axial")
    else:
        table[f"{positions}.embedding.weight"] = Parameter((config["max_position_embeddings"], width), "embedding")
    all_heads = config["num_attention_heads"] * config["attention_head_size"]
    projections = {"local": ("query", "key", "value"), "lsh": ("query_key", "value")}
    for index, kind in enumerate(config["attn_layers"]):
        layer = f"reformer.encoder.layers.{index}"
        table.update(layer_norm_parameters(f"{layer}.attention.layer_norm", width))
        for projection in projections[kind]:
            table.update(
                linear_parameters(f"{layer}.attention.self_attention.{projection}", width, all_heads, has_bias=False)
            )
        table.update(linear_parameters(f"{layer}.attention.output.dense", all_heads, width, has_bias=False))
        table.update(layer_norm_parameters(f"{layer}.feed_forward.layer_norm", width))
        table.update(linear_parameters(f"{layer}.feed_forward.dense.dense", width, inner))
        table.update(linear_parameters(f"{layer}.feed_forward.output.dense", inner, width))
    table.update(layer_norm_parameters("reformer.encoder.layer_norm", 2 * width))
    table.update(_head_parameters(config, head))
    return table


def _head_parameters(config: Mapping[str, Any], head: str) -> dict[str, Parameter]:
    """Return the parameters of a head by name."""
    width = config["hidden_size"]
    if head == "sequence_classification":
        return {
            **linear_parameters("classifier.dense", 2 * width, width),
            **linear_parameters("classifier.out_proj", width, config["num_labels"]),
        }
    if head == "question_answering":
        return linear_parameters("qa_outputs", 2 * width, 2)
    if head == "token_classification":
        return linear_parameters("classifier", 2 * width, config["num_labels"])
    if head in ("causal_lm", "masked_lm"):
        # The reference has two names for the output bias (ALIASES).
        decoder = linear_parameters("lm_head.decoder", 2 * width, config["vocab_size"], has_bias=False)
        return {**decoder, "lm_head.bias": Parameter((config["vocab_size"],), "bias")}
    raise ValueError(f"{head!r} is none of {', '.join(HEADS)}")


def num_layers(config: Mapping[str, Any]) -> int:
    """Return the number of layers."""
    return len(config["attn_layers"])


def standard_deviations(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the standard deviation of the initial values of each role, as in the reference."""
    deviation = config["initializer_range"]
    return {"linear": deviation, "embedding": deviation, "axial": config["axial_norm_std"]}


def initial_weights(config: Mapping[str, Any], head: str, seed: int) -> dict[str, np.ndarray]:
    """Return initial float32 values of all parameters by name.

    Matrices are normal with standard deviation ``initializer_range``, axial position tables with ``axial_norm_std``.
    Biases are 0, and norm gains are 1.

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
        WeightsError: a shape or a constant is wrong, a parameter of the body is missing, or a tensor is unknown.
    """
    # Parameters of other heads are skipped by name, because their shapes may depend on another num_labels.
    other_parameters = {name for other in HEADS if other != head for name in parameters(config, other)}
    return select_tensors(_rename_tensors(tensors), parameters(config, head), other_parameters, "reformer.")


def _rename_tensors(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Rename tensors to the reference's first names, with the prefix of the body, and drop mask constants."""
    for name, value in tensors:
        constant = MASK_CONSTANTS.get(name.rsplit(".", 1)[-1])
        if constant is not None:
            if not np.allclose(value, constant):
                raise WeightsError(f"{name}: {value} is not the {constant} of the model")
            continue
        name = name if name.startswith(("reformer.", "classifier.", "lm_head.", "qa_outputs.")) else f"reformer.{name}"
        yield ALIASES.get(name, name), value
