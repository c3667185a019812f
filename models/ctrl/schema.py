"""Every key of a CTRL ``config.json``: its allowed values, its default, and its treatment here.

A key is honoured (``DEFAULTS``), inert (``INERT``), or rejected by name (see :mod:`models.port.schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.port.schema import (
    MOST_EPSILON,
    MOST_LAYERS,
    SHARED_INERT,
    SHARED_ONLY,
    ConfigError,
    check_flags,
    check_not_negative,
    check_pad_token,
    check_probabilities,
    check_problem_type,
    check_whole,
    merge,
    settle_labels,
)

#: Honoured keys and their defaults: those of ``transformers.CTRLConfig``.
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

#: The reference's other names for honoured keys.
SYNONYMS = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

#: Keys of published ``config.json`` files that do not change the reference's computation: it has no dropout of
#: attention probabilities, and generation settings are given in the call.
INERT = SHARED_INERT | {
    "attn_pdrop", "eos_token_id", "from_tf", "is_decoder", "n_ctx", "num_beams", "repetition_penalty",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "temperature", "top_k", "top_p",
}  # fmt: skip

#: As :data:`models.port.schema.SHARED_ONLY`.
ONLY = {**SHARED_ONLY, "use_bfloat16": False}


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve the honoured keys: given values over :data:`DEFAULTS`, checked. Raises ConfigError for an unknown key, an
    unsupported value, or values that contradict each other."""
    config = merge(_first_names(given), DEFAULTS, ONLY, INERT)
    check_whole(config, ("dff", "n_embd", "n_head", "n_positions", "vocab_size"), 1)
    check_whole(config, ("n_layer",), 1, MOST_LAYERS)
    check_pad_token(config)
    check_probabilities(config, ("embd_pdrop", "resid_pdrop"))
    check_not_negative(config, ("initializer_range",))
    check_not_negative(config, ("layer_norm_epsilon",), MOST_EPSILON)
    check_problem_type(config)
    if config["n_embd"] % 2:
        raise ConfigError("n_embd", f"{config['n_embd']} is odd: half of the position table is sines, half cosines")
    if config["n_embd"] % config["n_head"]:
        raise ConfigError("n_head", f"{config['n_head']} heads do not divide n_embd = {config['n_embd']}")
    check_flags(config, ("tie_word_embeddings",))
    settle_labels(config)
    return config


def _first_names(given: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in given.items():
        name = SYNONYMS.get(key, key)
        if keys.setdefault(name, value) != value:
            raise ConfigError(key, f"{value!r} contradicts {name}: {keys[name]!r}, which is the same key")
    return keys


def check_training_length(config: Mapping[str, Any], length: int) -> None:
    """Raise :class:`ConfigError` unless the model can train on sequences of ``length`` tokens."""
    if length > config["n_positions"]:
        raise ConfigError("n_positions", f"{config['n_positions']} is less than {length}")


def width(config: Mapping[str, Any]) -> int:
    """Numbers of a position's hidden state."""
    return config["n_embd"]


def layer_elements(config: Mapping[str, Any], length: int) -> list[int]:
    """Elements of each layer's largest tensors, for one text."""
    return [length * (config["n_embd"] + config["dff"] + config["n_head"] * length)] * config["n_layer"]


def positions(config: Mapping[str, Any]) -> int:
    """Most tokens that a text may have."""
    return config["n_positions"]


def activation_bytes(config: Mapping[str, Any], length: int, causal_lm: bool) -> int:
    """Minimum bytes to train on one text, in float32: its stream and a layer's largest tensors."""
    width = config["n_embd"] + config["dff"] + config["n_head"] * length + (config["vocab_size"] if causal_lm else 0)
    return 4 * (length * width + config["n_positions"] * config["n_embd"])
