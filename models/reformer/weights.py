"""Reformer's parameters: names, shapes, roles, initial values, and selection from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from models.port.weights import Parameter, WeightsError, collect, dump, layer_norm, linear, load, new_values
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

#: The reference's second names of a parameter: a checkpoint may have either, or both with equal values.
ALIASES = {"lm_head.decoder.bias": "lm_head.bias"}

#: The linear maps that LoRA adapts by default: those of attention. LSH's queries are its keys.
ADAPTED = ("query", "key", "query_key", "value", "attention.output.dense")


def parameters(config: Mapping, head: str) -> dict[str, Parameter]:
    """Name -> :class:`Parameter` of the whole model with ``head`` (one of :data:`HEADS`), in execution order.
    ``config`` is resolved (``schema.resolve``), or anything with its keys."""
    hidden, inner = config["hidden_size"], config["feed_forward_size"]
    table: dict[str, Parameter] = {
        "reformer.embeddings.word_embeddings.weight": Parameter((config["vocab_size"], hidden), "embedding")
    }
    positions = "reformer.embeddings.position_embeddings"
    if config["axial_pos_embds"]:
        (rows, columns), (row_dim, column_dim) = config["axial_pos_shape"], config["axial_pos_embds_dim"]
        table[f"{positions}.weights.0"] = Parameter((rows, 1, row_dim), "axial")
        table[f"{positions}.weights.1"] = Parameter((1, columns, column_dim), "axial")
    else:
        table[f"{positions}.embedding.weight"] = Parameter((config["max_position_embeddings"], hidden), "embedding")
    all_heads = config["num_attention_heads"] * config["attention_head_size"]
    projections = {"local": ("query", "key", "value"), "lsh": ("query_key", "value")}
    for index, kind in enumerate(config["attn_layers"]):
        layer = f"reformer.encoder.layers.{index}"
        table.update(layer_norm(f"{layer}.attention.layer_norm", hidden))
        for projection in projections[kind]:
            table.update(linear(f"{layer}.attention.self_attention.{projection}", hidden, all_heads, bias=False))
        table.update(linear(f"{layer}.attention.output.dense", all_heads, hidden, bias=False))
        table.update(layer_norm(f"{layer}.feed_forward.layer_norm", hidden))
        table.update(linear(f"{layer}.feed_forward.dense.dense", hidden, inner))
        table.update(linear(f"{layer}.feed_forward.output.dense", inner, hidden))
    table.update(layer_norm("reformer.encoder.layer_norm", 2 * hidden))
    table.update(_head(config, head))
    return table


def _head(config: Mapping, head: str) -> dict[str, Parameter]:
    hidden = config["hidden_size"]
    if head == "sequence_classification":
        return {
            **linear("classifier.dense", 2 * hidden, hidden),
            **linear("classifier.out_proj", hidden, config["num_labels"]),
        }
    if head == "question_answering":
        return linear("qa_outputs", 2 * hidden, 2)
    if head == "token_classification":
        return linear("classifier", 2 * hidden, config["num_labels"])
    if head in ("causal_lm", "masked_lm"):
        # The reference has the output bias under two names (ALIASES).
        decoder = linear("lm_head.decoder", 2 * hidden, config["vocab_size"], bias=False)
        return {**decoder, "lm_head.bias": Parameter((config["vocab_size"],), "bias")}
    raise ValueError(f"{head!r} is none of {', '.join(HEADS)}")


def depth(config: Mapping) -> int:
    """The number of layers."""
    return len(config["attn_layers"])


def deviations(config: Mapping) -> dict[str, float]:
    """Role -> standard deviation of its new values, as the reference initialises them."""
    width = config["initializer_range"]
    return {"linear": width, "embedding": width, "axial": config["axial_norm_std"]}


def initial_weights(config: Mapping, head: str, seed: int) -> dict[str, np.ndarray]:
    """New float32 weights: matrices of standard deviation ``initializer_range``, axial position tables of
    ``axial_norm_std``, biases 0 and norm gains 1."""
    return dict(initial_values(config, head, seed))


def initial_values(config: Mapping, head: str, seed: int) -> Mapping[str, np.ndarray]:
    """As :func:`initial_weights`, each made on access."""
    return new_values(parameters(config, head), deviations(config), seed)


def select(tensors: Iterable[tuple[str, np.ndarray]], config: Mapping, head: str) -> dict[str, np.ndarray]:
    """Return the checkpoint's tensors of the model with ``head``, each checked; no others go unnoticed.

    A checkpoint made for another head is accepted for the body. The result then lacks the parameters of this head; the
    caller gives them new values (:func:`initial_weights`) and says so.

    Raises:
        WeightsError: a wrong shape, a missing body parameter, an unknown tensor or a wrong constant, by name.
    """
    # Another head's parameters are skipped whatever their shape: the question-answering head's depends on num_labels.
    others = {name for other in HEADS if other != head for name in parameters(config, other)}
    return collect(_canonical(tensors), parameters(config, head), others, "reformer.")


def _canonical(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Rename tensors to the reference's first names, with the body's prefix; drop mask constants."""
    for name, value in tensors:
        constant = MASK_CONSTANTS.get(name.rsplit(".", 1)[-1])
        if constant is not None:
            if not np.allclose(value, constant):
                raise WeightsError(f"{name}: {value} is not the {constant} of the model")
            continue
        name = name if name.startswith(("reformer.", "classifier.", "lm_head.", "qa_outputs.")) else f"reformer.{name}"
        yield ALIASES.get(name, name), value
