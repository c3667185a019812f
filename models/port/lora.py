"""Low-rank adaptation: the settings of an adapter, its parameters, and their merging into the weights.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1. A linear layer W0 (out, in) is
frozen, and the factors B (out, r) and A (r, in) are trained: h = W0 x + (alpha / r) B A x. The layers that compute it
are in :mod:`.adapter`. This module needs no Paddle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from models.files.tensor_file import LazyArrays
from models.port.weights import Parameter, make_generator

#: Prefix of the parameter names of a numbered layer; parameters of a head have no such prefix.
LAYER_PREFIX = re.compile(r"^.*?\.\d+\.")
#: Names of the two factors in an adapter's checkpoint, below the linear layer that they adapt.
A, B = "lora_A", "lora_B"


@dataclass(frozen=True)
class LoRA:
    """Settings of an adapter.

    Attributes:
        rank: rank of the update, r.
        alpha: numerator of the update's scale, alpha / r.
        dropout: dropout rate of the input of A in training.
        targets: ends of the names of the adapted linear layers, such as ``query`` or ``attention.output.dense``.
        whole: names of the parameters that are trained directly because the checkpoint lacks their head.
    """

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    whole: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, keys: Mapping[str, Any]) -> LoRA:
        """Return the settings from the JSON form of ``dataclasses.asdict``."""
        return cls(keys["rank"], keys["alpha"], keys["dropout"], tuple(keys["targets"]), tuple(keys["whole"]))

    @property
    def scale(self) -> float:
        """Factor of the update B A, alpha / r."""
        return self.alpha / self.rank

    def is_target(self, name: str) -> bool:
        """Return whether the linear layer of this name is adapted."""
        return bool(LAYER_PREFIX.search(name)) and any(name.endswith(f".{target}") for target in self.targets)

    def is_trained(self, name: str) -> bool:
        """Return whether the parameter of this name is trained; all others are frozen."""
        return f".{A}." in name or f".{B}." in name or name in self.whole


def linear_layers(table: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the weights of the linear layers outside of heads, by the name of the layer."""
    linear_weights = {
        name.removesuffix(".weight"): parameter for name, parameter in table.items() if parameter.role == "linear"
    }
    return {name: parameter for name, parameter in linear_weights.items() if LAYER_PREFIX.search(name)}


def adapter_parameters(table: Mapping[str, Parameter], lora: LoRA) -> dict[str, Parameter]:
    """Return the shapes and roles of the two matrices that LoRA adds to each target layer, by parameter name.

    Args:
        table: shapes and roles of the parameters of the model without an adapter, by name.
        lora: settings of the adapter.
    """
    parameters = {}
    for name, (shape, role) in linear_layers(table).items():
        if lora.is_target(name):
            num_outputs, num_inputs = shape
            parameters[f"{name}.{A}.weight"] = Parameter((lora.rank, num_inputs), role)
            parameters[f"{name}.{B}.weight"] = Parameter((num_outputs, lora.rank), role)
    return parameters


def draw_adapter(table: Mapping[str, Parameter], lora: LoRA, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the initial float32 value of each parameter of the adapter.

    A is normal, scaled so that A x is about as large as x. B is zero (section 4.1), so that training starts from the
    original model.

    Args:
        table: parameters of the adapted model by name.
        lora: settings of the adapter.
        seed: seed of the random draws.
    """
    for name, (shape, _) in adapter_parameters(table, lora).items():
        if f".{A}." in name:
            draws = make_generator(seed, name).standard_normal(shape, dtype=np.float32)
            yield name, draws / np.float32(math.sqrt(shape[1]))
        else:
            yield name, np.zeros(shape, np.float32)


def merge_weights(weights: Mapping[str, np.ndarray], lora: LoRA) -> Mapping[str, np.ndarray]:
    """Return the weights of the equivalent plain model by name, each computed on access.

    Args:
        weights: weights of the adapted model and of the adapter, in Hugging Face's names and layout.
        lora: settings of the adapter.
    """
    plain_names = [name for name in weights if f".{A}." not in name and f".{B}." not in name]
    return LazyArrays({name: partial(_merge_weight, weights, name, lora.scale) for name in plain_names})


def _merge_weight(weights: Mapping[str, np.ndarray], name: str, scale: float) -> np.ndarray:
    """Return W0 + scale * B A, computed in float64, for an adapted weight, and any other weight unchanged.

    Args:
        weights: all parameters of the adapted model, by name.
        name: name of the parameter to return.
        scale: factor of the product B A, alpha / r.
    """
    value, layer_name = weights[name], name.removesuffix(".weight")
    if f"{layer_name}.{A}.weight" not in weights:
        return value
    first, second = (weights[f"{layer_name}.{factor}.weight"].astype(np.float64) for factor in (A, B))
    return (value + scale * (second @ first)).astype(value.dtype)
