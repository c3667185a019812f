"""Reformer's parameters: their names, shapes and roles, new values, and the strict way in and out of the port.

The names and layouts are those of Hugging Face's checkpoints. A parameter's *role* decides its layout in Paddle and its
first value; a shape never does, since a square weight looks right either way round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

HEADS = ("sequence_classification", "causal_lm", "masked_lm")

#: Constants that old checkpoints hold as if they were weights, and the values that they must have.
MASK_CONSTANTS = {
    "mask_value_float16": -1e4,
    "mask_value_float32": -1e9,
    "self_mask_value_float16": -1e3,
    "self_mask_value_float32": -1e5,
}


#: Second names under which the reference holds a parameter: a checkpoint may have either, or both with equal values.
ALIASES = {"lm_head.decoder.bias": "lm_head.bias"}


class Parameter(NamedTuple):
    """A parameter's shape in a Hugging Face checkpoint and its role.

    Roles: ``linear`` (out, in; Paddle holds it transposed), ``bias``, ``embedding``, ``axial`` (a position table along
    one axis), ``norm_gain``, ``norm_bias``.
    """

    shape: tuple[int, ...]
    role: str


class WeightsError(ValueError):
    """Weights that do not fit the model one to one."""


def parameters(config: Mapping, head: str) -> dict[str, Parameter]:
    """Name -> :class:`Parameter` of the whole model with ``head`` (one of :data:`HEADS`), in execution order.

    Args:
        config: a resolved configuration (``schema.resolve``), or anything with its keys.
    """
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
        table.update(_layer_norm(f"{layer}.attention.layer_norm", hidden))
        for projection in projections[kind]:
            table.update(_linear(f"{layer}.attention.self_attention.{projection}", hidden, all_heads, bias=False))
        table.update(_linear(f"{layer}.attention.output.dense", all_heads, hidden, bias=False))
        table.update(_layer_norm(f"{layer}.feed_forward.layer_norm", hidden))
        table.update(_linear(f"{layer}.feed_forward.dense.dense", hidden, inner))
        table.update(_linear(f"{layer}.feed_forward.output.dense", inner, hidden))
    table.update(_layer_norm("reformer.encoder.layer_norm", 2 * hidden))
    table.update(_head(config, head))
    return table


def _head(config: Mapping, head: str) -> dict[str, Parameter]:
    hidden = config["hidden_size"]
    if head == "sequence_classification":
        return {
            **_linear("classifier.dense", 2 * hidden, hidden),
            **_linear("classifier.out_proj", hidden, config["num_labels"]),
        }
    if head in ("causal_lm", "masked_lm"):
        # The reference has the output bias under two names (ALIASES).
        decoder = _linear("lm_head.decoder", 2 * hidden, config["vocab_size"], bias=False)
        return {**decoder, "lm_head.bias": Parameter((config["vocab_size"],), "bias")}
    raise ValueError(f"{head!r} is none of {', '.join(HEADS)}")


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, Parameter]:
    table = {f"{name}.weight": Parameter((outputs, inputs), "linear")}
    return {**table, f"{name}.bias": Parameter((outputs,), "bias")} if bias else table


def _layer_norm(name: str, width: int) -> dict[str, Parameter]:
    return {f"{name}.weight": Parameter((width,), "norm_gain"), f"{name}.bias": Parameter((width,), "norm_bias")}


def initial_weights(config: Mapping, head: str, seed: int) -> dict[str, np.ndarray]:
    """New float32 weights, the same for a seed on every machine and in every framework.

    Matrices are normal with standard deviation ``initializer_range``, axial position tables ``axial_norm_std``, biases
    0 and norm gains 1, as the reference initialises them. Each parameter has a generator of its own, so that a model
    with one layer more shares all other values.
    """
    deviations = {
        "linear": config["initializer_range"],
        "embedding": config["initializer_range"],
        "axial": config["axial_norm_std"],
    }
    weights = {}
    for name, (shape, role) in parameters(config, head).items():
        if role in deviations:
            draws = generator(seed, name).standard_normal(shape, dtype=np.float32)
            weights[name] = draws * np.float32(deviations[role])
        else:
            weights[name] = np.full(shape, 1 if role == "norm_gain" else 0, np.float32)
    return weights


def generator(seed: int, name: str) -> np.random.Generator:
    """A NumPy generator of its own for every (seed, name)."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def to_paddle(value: np.ndarray, role: str) -> np.ndarray:
    """The value as Paddle's layers hold it, and back: only ``linear`` is transposed."""
    return value.T if role == "linear" else value


def select(tensors: Iterable[tuple[str, np.ndarray]], config: Mapping, head: str) -> dict[str, np.ndarray]:
    """The checkpoint's tensors that belong to the model with ``head``, each checked, nothing left over unnoticed.

    A checkpoint made for another head is accepted for the body; the parameters of this head are then absent from the
    result, and the caller gives them new values (:func:`initial_weights`) and says so.

    Raises:
        WeightsError: a wrong shape, a missing body parameter, an unknown tensor or a wrong constant, by name.
    """
    wanted = parameters(config, head)
    other_heads = {name for other in HEADS if other != head for name in parameters(config, other)} - set(wanted)
    found: dict[str, np.ndarray] = {}
    unknown = []
    for name, value in tensors:
        name = name if name.startswith(("reformer.", "classifier.", "lm_head.", "qa_outputs.")) else f"reformer.{name}"
        name = ALIASES.get(name, name)
        if name in wanted:
            if tuple(value.shape) != wanted[name].shape:
                raise WeightsError(
                    f"{name}: shape {tuple(value.shape)}, but the configuration wants {wanted[name].shape}"
                )
            if name in found and not np.array_equal(found[name], value):
                raise WeightsError(f"{name}: stands there twice, with different values")
            found[name] = value
        elif name.rsplit(".", 1)[-1] in MASK_CONSTANTS:
            if not np.allclose(value, MASK_CONSTANTS[name.rsplit(".", 1)[-1]]):
                raise WeightsError(f"{name}: {value} is not the {MASK_CONSTANTS[name.rsplit('.', 1)[-1]]} of the model")
        elif name not in other_heads and not name.startswith("qa_outputs."):
            unknown.append(name)
    missing = [name for name in wanted if name not in found and name.startswith("reformer.")]
    if unknown or missing:
        raise WeightsError("; ".join(_listed("unknown", unknown) + _listed("missing", missing)))
    return found


def _listed(what: str, names: list[str]) -> list[str]:
    return [f"{len(names)} {what}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"] if names else []


def load(model, weights: Mapping[str, np.ndarray]) -> None:
    """Put Hugging Face weights into the port, one to one by name and role, cast to the port's dtype.

    Raises:
        WeightsError: a name missing or left over on either side, or a shape that differs.
    """
    table = parameters(model.config, model.head)
    ours = dict(model.named_parameters())
    absent = _listed("missing from the weights", [name for name in table if name not in weights])
    extra = _listed("left over in the weights", [name for name in weights if name not in table])
    unmapped = _listed("not in the port", [name for name in table if name not in ours])
    unnamed = _listed("in the port alone", [name for name in ours if name not in table])
    if problems := absent + extra + unmapped + unnamed:
        raise WeightsError("; ".join(problems))
    for name, (shape, role) in table.items():
        value = np.asarray(weights[name])
        if tuple(value.shape) != shape:
            raise WeightsError(f"{name}: shape {tuple(value.shape)}, but the configuration wants {shape}")
        ours[name].set_value(np.ascontiguousarray(to_paddle(value, role)).astype(_numpy_dtype(ours[name])))


def dump(model) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every parameter of the port, in Hugging Face's names and layout."""
    ours = dict(model.named_parameters())
    for name, (_, role) in parameters(model.config, model.head).items():
        yield name, np.ascontiguousarray(to_paddle(ours[name].numpy(), role))


def _numpy_dtype(tensor) -> str:
    return str(tensor.dtype).rsplit(".", 1)[-1]
