"""CTRL's parameters: names, shapes, roles, initial values, and selection from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from models.ctrl.family import FAMILY
from models.port.weights import Parameter, WeightsError, collect, dump, layer_norm, linear, load, new_values

__all__ = ["HEADS", "WeightsError", "dump", "initial_values", "initial_weights", "load", "parameters", "select"]

HEADS = FAMILY.heads

EMBEDDING = "transformer.w.weight"

#: The linear maps that LoRA adapts by default: those of attention.
ADAPTED = ("Wq", "Wk", "Wv", "dense")


def parameters(config: Mapping, head: str) -> dict[str, Parameter]:
    """Name -> :class:`~models.port.weights.Parameter` of the whole model with ``head`` (one of :data:`HEADS`), in
    execution order. ``config`` is resolved (``schema.resolve``), or anything with its keys."""
    table = {EMBEDDING: Parameter((config["vocab_size"], config["n_embd"]), "embedding")}
    for index in range(config["n_layer"]):
        table.update(layer(config, index))
    table.update(layer_norm("transformer.layernorm", config["n_embd"]))
    table.update(_head(config, head))
    return table


def layer(config: Mapping, index: int) -> dict[str, Parameter]:
    """The parameters of one layer (12 vectors and matrices)."""
    width, inner = config["n_embd"], config["dff"]
    name = f"transformer.h.{index}"
    table = layer_norm(f"{name}.layernorm1", width)
    for projection in ("Wq", "Wk", "Wv", "dense"):
        table.update(linear(f"{name}.multi_head_attention.{projection}", width, width))
    table.update(layer_norm(f"{name}.layernorm2", width))
    table.update(linear(f"{name}.ffn.0", width, inner))
    table.update(linear(f"{name}.ffn.2", inner, width))
    return table


def _head(config: Mapping, head: str) -> dict[str, Parameter]:
    if head == "causal_lm":
        bias = {"lm_head.bias": Parameter((config["vocab_size"],), "bias")}
        if config["tie_word_embeddings"]:
            return bias
        # Like the embedding, which is as large, it has the checkpoint's layout, unlike other linear maps.
        return {"lm_head.weight": Parameter((config["vocab_size"], config["n_embd"]), "embedding"), **bias}
    if head == "sequence_classification":
        return linear("classifier", config["n_embd"], config["num_labels"], bias=False)
    raise ValueError(f"{head!r} is none of {', '.join(HEADS)}")


def depth(config: Mapping) -> int:
    """The number of layers."""
    return config["n_layer"]


def deviations(config: Mapping) -> dict[str, float]:
    """Role -> standard deviation of its new values, as the reference initialises them."""
    return {"linear": config["initializer_range"], "embedding": config["initializer_range"]}


def initial_weights(config: Mapping, head: str, seed: int) -> dict[str, np.ndarray]:
    """New float32 weights: matrices of standard deviation ``initializer_range``, biases 0 and norm gains 1."""
    return dict(initial_values(config, head, seed))


def initial_values(config: Mapping, head: str, seed: int) -> Mapping[str, np.ndarray]:
    """As :func:`initial_weights`, each made on access."""
    return new_values(parameters(config, head), deviations(config), seed)


def select(tensors: Iterable[tuple[str, np.ndarray]], config: Mapping, head: str) -> dict[str, np.ndarray]:
    """Return the checkpoint's tensors of the model with ``head``, each checked; no others go unnoticed.

    A checkpoint made for another head is accepted for the body. The result then lacks the parameters of this head; the
    caller gives them new values (:func:`initial_weights`) and says so.

    Raises:
        WeightsError: a wrong shape, a missing body parameter, an unknown tensor, or an output layer that differs from
            the embedding it is tied to.
    """
    others = {name for other in HEADS if other != head for name in parameters(config, other)}
    tied = config["tie_word_embeddings"]
    others.add("lm_head.weight")
    return collect(_canonical(tensors, tied and head == "causal_lm"), parameters(config, head), others, "transformer.")


def _canonical(tensors: Iterable[tuple[str, np.ndarray]], tied: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Add the body's prefix to names; rename a tied output layer to the embedding."""
    for name, value in tensors:
        name = name if name.startswith(("transformer.", "lm_head.", "classifier.")) else f"transformer.{name}"
        yield EMBEDDING if tied and name == "lm_head.weight" else name, value
