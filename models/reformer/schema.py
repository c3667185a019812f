"""The keys of a Reformer ``config.json``, with their defaults and allowed values.

A key is honored (``DEFAULTS``), inert (``INERT``), or rejected by name (see :mod:`models.port.schema`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from models.port.schema import (
    MAX_EPSILON,
    MAX_INTEGER,
    MAX_LAYERS,
    SHARED_INERT,
    SHARED_ONLY,
    ConfigError,
    check_flags,
    check_integers,
    check_not_negative,
    check_pad_token,
    check_probabilities,
    check_problem_type,
    is_integer_list,
    merge_with_defaults,
    resolve_labels,
)

#: Honored keys and their defaults, as in ``transformers.ReformerConfig``.
DEFAULTS: dict[str, Any] = {
    "attention_head_size": 64,
    "attn_layers": ["local", "lsh", "local", "lsh", "local", "lsh"],
    "axial_norm_std": 1.0,
    "axial_pos_embds": True,
    "axial_pos_shape": [64, 64],
    "axial_pos_embds_dim": [64, 192],
    "chunk_size_feed_forward": 0,
    "chunk_size_lm_head": 0,
    "classifier_dropout": None,
    "eos_token_id": 2,
    "feed_forward_size": 512,
    "hash_seed": None,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.05,
    "hidden_size": 256,
    "id2label": None,
    "initializer_range": 0.02,
    "is_decoder": False,
    "label2id": None,
    "layer_norm_eps": 1e-12,
    "local_attention_probs_dropout_prob": 0.05,
    "local_attn_chunk_length": 64,
    "local_num_chunks_after": 0,
    "local_num_chunks_before": 1,
    "lsh_attention_probs_dropout_prob": 0.0,
    "lsh_attn_chunk_length": 64,
    "lsh_num_chunks_after": 0,
    "lsh_num_chunks_before": 1,
    "max_position_embeddings": 4096,
    "num_attention_heads": 12,
    "num_buckets": None,
    "num_hashes": 1,
    "num_labels": None,
    "pad_token_id": 0,
    "problem_type": None,
    "tie_word_embeddings": False,
    "vocab_size": 320,
}

#: Keys of published ``config.json`` files that do not change the reference's computation.
INERT = SHARED_INERT | {
    "attention_probs_dropout_prob", "intermediate_size", "num_chunks_after", "num_chunks_before", "num_hidden_layers",
    "seed", "share_parameters_between_layers", "type_vocab_size",
}  # fmt: skip

#: Keys that change the computation, with the only supported value (see :data:`models.port.schema.SHARED_ONLY`).
ONLY = {**SHARED_ONLY, "sinusoidal_pos_embds": False}

ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "swish", "tanh", "sigmoid")

_POSITIVE = (
    "attention_head_size", "feed_forward_size", "hidden_size", "local_attn_chunk_length", "lsh_attn_chunk_length",
    "max_position_embeddings", "num_attention_heads", "num_hashes", "vocab_size",
)  # fmt: skip
_COUNTS = (
    "chunk_size_feed_forward", "chunk_size_lm_head", "local_num_chunks_after", "local_num_chunks_before",
    "lsh_num_chunks_after", "lsh_num_chunks_before", "eos_token_id",
)  # fmt: skip
_PROBABILITIES = ["hidden_dropout_prob", "local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob"]


def resolve(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved configuration: a checked value for each honored key.

    Args:
        keys: configuration keys and their values; :data:`DEFAULTS` has the values of other keys.

    Raises:
        ConfigError: a key is unknown, a value is not supported, or two values contradict each other.
    """
    config = merge_with_defaults(keys, DEFAULTS, ONLY, INERT)
    check_flags(config, ("is_decoder", "axial_pos_embds", "tie_word_embeddings"))
    _check_layers(config)
    for kind in {"local", "lsh"} - set(config["attn_layers"]):  # published files have null for an unused kind
        config.update({k: DEFAULTS[k] for k in config if k.startswith(f"{kind}_") and config[k] is None})
    _check_values(config)
    _check_buckets(config)
    _check_positions(config)
    config["num_hidden_layers"] = len(config["attn_layers"])
    resolve_labels(config)
    return config


def chunk_lengths(config: Mapping[str, Any]) -> list[int]:
    """Return the chunk length of each kind of attention that the model has."""
    return [config[f"{kind}_attn_chunk_length"] for kind in ("local", "lsh") if kind in config["attn_layers"]]


def check_training_length(config: Mapping[str, Any], length: int) -> None:
    """Raise :class:`ConfigError` unless the model can train on sequences of exactly ``length`` tokens.

    With axial positions, the reference requires that the product of their shape is the length. Attention needs a
    multiple of every chunk length, unless the sequence fits into one chunk. :func:`models.reformer.lengths.fit` finds
    such a shape and length.
    """
    if config["axial_pos_embds"] and math.prod(config["axial_pos_shape"]) != length:
        shape = config["axial_pos_shape"]
        raise ConfigError(
            "axial_pos_shape",
            f"{shape} has the product {math.prod(shape)}, but training sequences are {length} tokens long",
        )
    if length > min(chunk_lengths(config)) and length % math.lcm(*chunk_lengths(config)):
        raise ConfigError(
            "attn_layers",
            f"training sequences of {length} tokens are no multiple of the chunk lengths {chunk_lengths(config)}",
        )
    if length > config["max_position_embeddings"]:
        raise ConfigError("max_position_embeddings", f"{config['max_position_embeddings']} is less than {length}")
    for key in ("chunk_size_feed_forward", "chunk_size_lm_head"):
        if config[key] and length % config[key]:
            raise ConfigError(key, f"{length} tokens are no multiple of {config[key]}")


def max_positions(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a text."""
    maximum = config["max_position_embeddings"]
    return min(maximum, math.prod(config["axial_pos_shape"])) if config["axial_pos_embds"] else maximum


def activation_bytes(config: Mapping[str, Any], length: int, *, causal_lm: bool) -> int:
    """Return the minimum number of bytes to train on one text in float32.

    They hold the two residual streams and the largest tensors of one layer of each kind.

    Args:
        config: resolved configuration.
        length: number of tokens of the text.
        causal_lm: whether the model scores every token of the vocabulary at each position.
    """
    elements = [2 * length * config["hidden_size"], _feed_forward_elements(config, length)]
    elements += [_score_elements(config, length, kind) for kind in set(config["attn_layers"])]
    if "lsh" in config["attn_layers"]:
        elements.append(_rotation_elements(config, length))
    if causal_lm:
        elements.append((config["chunk_size_lm_head"] or length) * config["vocab_size"])
    return 4 * sum(elements)


def hidden_width(config: Mapping[str, Any]) -> int:
    """Return the number of elements in the hidden state of a position."""
    return config["hidden_size"]


#: Share of :func:`layer_elements` that a step with compiled loops needs, since they store no scores (measured: 0.35 to
#: 0.45).
SHARE_IN_LOOPS = 0.42


def layer_elements(config: Mapping[str, Any], length: int) -> list[int]:
    """Return the sum of the elements of each layer's large tensors, for one text of ``length`` tokens.

    Large are the tensors that grow with the length: hidden states, inner states, attention scores and rotated vectors.
    """
    common_elements = 2 * length * config["hidden_size"] + _feed_forward_elements(config, length)
    rotations = {"lsh": _rotation_elements(config, length), "local": 0}
    return [common_elements + _score_elements(config, length, kind) + rotations[kind] for kind in config["attn_layers"]]


def _feed_forward_elements(config: Mapping[str, Any], length: int) -> int:
    """Return the number of elements in the inner states of a layer's feed-forward layer."""
    return (config["chunk_size_feed_forward"] or length) * config["feed_forward_size"]


def _score_elements(config: Mapping[str, Any], length: int, kind: str) -> int:
    """Return the number of attention scores of a layer, over all hash rounds.

    Args:
        config: resolved configuration.
        length: number of tokens of the text.
        kind: ``local`` or ``lsh``.
    """
    num_rounds = config["num_hashes"] if kind == "lsh" else 1
    chunk_length = min(config[f"{kind}_attn_chunk_length"], length)
    num_neighbors = config[f"{kind}_num_chunks_before"] + config[f"{kind}_num_chunks_after"]
    num_chunks = 1 + num_neighbors if chunk_length < length else 1
    return config["num_attention_heads"] * num_rounds * length * chunk_length * num_chunks


def _rotation_elements(config: Mapping[str, Any], length: int) -> int:
    """Return the number of elements in the random rotations of an LSH layer; a text of one chunk is not hashed."""
    if length <= config["lsh_attn_chunk_length"]:
        return 0
    buckets = num_buckets(config, length)
    num_axes = (buckets if isinstance(buckets, int) else sum(buckets)) // 2
    return config["num_attention_heads"] * config["attention_head_size"] * config["num_hashes"] * num_axes


def num_buckets(config: Mapping[str, Any], length: int) -> int | list[int]:
    """Return the number of LSH buckets, as one number or as factors that are hashed separately.

    If the configuration does not set it, it is a power of two near 2 * length / chunk length, with two factors if this
    is large.
    """
    if config["num_buckets"] is not None:
        return config["num_buckets"]
    chunk_length = config["lsh_attn_chunk_length"]
    exponent = (2 * (length // chunk_length)).bit_length() - 1
    max_single = 2 * max(math.isqrt(config["max_position_embeddings"] // chunk_length), chunk_length)
    return 2**exponent if 2**exponent <= max_single else [2 ** (exponent // 2), 2 ** (exponent - exponent // 2)]


def _check_values(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` if a single number, such as ``hidden_size`` or a dropout rate, is out of its range.

    Keys whose value is a list, such as ``attn_layers``, are checked elsewhere.
    """
    check_integers(config, _POSITIVE, 1)
    check_integers(config, _COUNTS, 0)
    check_pad_token(config)
    check_probabilities(config, _PROBABILITIES + ["classifier_dropout"] * (config["classifier_dropout"] is not None))
    check_not_negative(config, ("initializer_range", "axial_norm_std"))
    check_not_negative(config, ("layer_norm_eps",), MAX_EPSILON)
    if config["hash_seed"] is not None:
        check_integers(config, ("hash_seed",), 0)
    check_problem_type(config)
    if config["hidden_act"] not in ACTIVATIONS:
        raise ConfigError("hidden_act", f"{config['hidden_act']!r} is none of {', '.join(ACTIVATIONS)}")
    if config["tie_word_embeddings"]:
        raise ConfigError("tie_word_embeddings", "Reformer's output layer is twice as wide as its embedding; set false")


def _check_layers(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for an invalid list of layers, or a causal model that looks ahead."""
    layers = config["attn_layers"]
    if not isinstance(layers, (list, tuple)) or not layers or not all(kind in ("local", "lsh") for kind in layers):
        raise ConfigError("attn_layers", f"{layers!r} should be a list of 'local' and 'lsh', at least one")
    if len(layers) > MAX_LAYERS:
        raise ConfigError("attn_layers", f"{len(layers)} layers are too many; {MAX_LAYERS} is the most")
    if config["is_decoder"]:
        for kind in sorted(set(layers)):
            if config[f"{kind}_num_chunks_after"]:
                raise ConfigError(f"{kind}_num_chunks_after", "a causal model (is_decoder) cannot look ahead; set 0")


def _check_buckets(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for an invalid number of LSH buckets."""
    buckets = config["num_buckets"]
    if buckets is None:
        return
    factors = buckets if isinstance(buckets, (list, tuple)) else [buckets]
    if not factors or not is_integer_list(factors, 2) or any(factor % 2 for factor in factors):
        raise ConfigError("num_buckets", f"{buckets!r} should be an even number, or a list of even numbers")
    if len(factors) > MAX_INTEGER.bit_length() or math.prod(factors) > MAX_INTEGER:
        raise ConfigError("num_buckets", f"{buckets!r} has too large a product; {MAX_INTEGER} is the most")


def _check_positions(config: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for an invalid shape of the axial positions."""
    if not config["axial_pos_embds"]:
        return
    shape, dims = config["axial_pos_shape"], config["axial_pos_embds_dim"]
    if not is_integer_list(shape) or len(shape) != 2:
        raise ConfigError("axial_pos_shape", f"{shape!r} should be two positive whole numbers")
    if not is_integer_list(dims) or len(dims) != 2 or sum(dims) != config["hidden_size"]:
        raise ConfigError(
            "axial_pos_embds_dim", f"{dims!r} should be two numbers with the sum hidden_size = {config['hidden_size']}"
        )
