"""The keys of a CTRL ``config.json``, with their defaults and allowed values.

A key is honored (``DEFAULTS``), inert (``INERT``), or rejected by name (see :mod:`models.port.schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.port.schema import (
    MAX_EPSILON,
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
    merge_with_defaults,
    resolve_labels,
)

#: Honored keys and their defaults, as in ``transformers.CTRLConfig``.
DEFAULTS: dict[str, Any] = {
    "dff": 8192,
    "embd_pdrop": 0.1,
    "id2label": None,
    "initializer_range": 0.02,
    "label2id": None,
    "layer_norm_epsilon": 1e-6,
    "n_embd": 1280,
    "n_head": 16,
    "n_layer": 48,
    "n_positions": 256,
    "num_labels": None,
    "pad_token_id": None,
    "problem_type": None,
    "resid_pdrop": 0.1,
    "tie_word_embeddings": True,
    "vocab_size": 246534,
}

#: The reference's other names of honored keys.
SYNONYMS = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

#: Keys of published ``config.json`` files that do not change the reference's computation. It has no dropout of
#: attention probabilities, and its generation settings are arguments of a call.
INERT = SHARED_INERT | {
    "attn_pdrop", "eos_token_id", "from_tf", "is_decoder", "n_ctx", "num_beams", "repetition_penalty",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "temperature", "top_k", "top_p",
}  # fmt: skip

#: Keys that change the computation, with the only supported value (see :data:`models.port.schema.SHARED_ONLY`).
ONLY = {**SHARED_ONLY, "use_bfloat16": False}


def resolve(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved configuration: a checked value for each honored key.

    Args:
        keys: configuration keys and their values; :data:`DEFAULTS` has the values of other keys.

    Raises:
        ConfigError: a key is unknown, a value is not supported, or two values contradict each other.
    """
    config = merge_with_defaults(_replace_synonyms(keys), DEFAULTS, ONLY, INERT)
    check_integers(config, ("dff", "n_embd", "n_head", "n_positions", "vocab_size"), 1)
    check_integers(config, ("n_layer",), 1, MAX_LAYERS)
    check_pad_token(config)
    check_probabilities(config, ("embd_pdrop", "resid_pdrop"))
    check_not_negative(config, ("initializer_range",))
    check_not_negative(config, ("layer_norm_epsilon",), MAX_EPSILON)
    check_problem_type(config)
    if config["n_embd"] % 2:
        raise ConfigError("n_embd", f"{config['n_embd']} is odd: half of the position table is sines, half cosines")
    if config["n_embd"] % config["n_head"]:
        raise ConfigError("n_head", f"{config['n_head']} heads do not divide n_embd = {config['n_embd']}")
    check_flags(config, ("tie_word_embeddings",))
    resolve_labels(config)
    return config


def _replace_synonyms(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with each synonym replaced by its honored key."""
    honored_keys: dict[str, Any] = {}
    for key, value in keys.items():
        name = SYNONYMS.get(key, key)
        if honored_keys.setdefault(name, value) != value:
            raise ConfigError(key, f"{value!r} contradicts {name}: {honored_keys[name]!r}, which is the same key")
    return honored_keys


def check_training_length(config: Mapping[str, Any], length: int) -> None:
    """Check that the model can train on sequences of ``length`` tokens. Raise :class:`ConfigError` otherwise."""
    if length > config["n_positions"]:
        raise ConfigError("n_positions", f"{config['n_positions']} is less than {length}")


def hidden_width(config: Mapping[str, Any]) -> int:
    """Return the number of elements in the hidden state of a position."""
    return config["n_embd"]


def layer_elements(config: Mapping[str, Any], length: int) -> list[int]:
    """Return the sum of the elements of each layer's large tensors, for one text of ``length`` tokens.

    Large are the tensors that grow with the length: hidden states, inner states and attention scores.
    """
    return [length * (config["n_embd"] + config["dff"] + config["n_head"] * length)] * config["n_layer"]


def max_positions(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a text."""
    return config["n_positions"]


def activation_bytes(config: Mapping[str, Any], length: int, *, causal_lm: bool) -> int:
    """Return the minimum number of bytes to train on one text in float32.

    They hold the hidden states, the largest tensors of one layer, and the position table.

    Args:
        config: resolved configuration.
        length: number of tokens of the text.
        causal_lm: whether the model scores every token of the vocabulary at each position.
    """
    width = config["n_embd"] + config["dff"] + config["n_head"] * length + (config["vocab_size"] if causal_lm else 0)
    return 4 * (length * width + config["n_positions"] * config["n_embd"])
