"""Low-rank adaptation: which linear maps of a model it adapts, its parameters, and their sum with the weights.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1: a linear map W0 (out, in) stays as it
is, and beside it B A is trained, B (out, r) and A (r, in): h = W0 x + (alpha / r) B A x. The layers that compute it are
in :mod:`.adapter`; this module needs no Paddle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from models.files.tensor_file import OnDemand
from models.port.weights import Parameter, generator

#: A linear map of a layer, not of a head.
OF_A_LAYER = re.compile(r"\.(?:layers|h)\.\d+\.")
#: What the two factors are called below the map that they adapt, in a checkpoint of the adapter.
A, B = "lora_A", "lora_B"


@dataclass(frozen=True)
class LoRA:
    """What is adapted, and how.

    Attributes:
        rank: r.
        alpha: the update is scaled by alpha / r.
        dropout: the rate at which what goes into A is dropped in training.
        targets: ends of the names of linear maps, such as ``query`` or ``attention.output.dense``.
        whole: names of parameters that are trained themselves: of a head that the checkpoint does not have.
    """

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    whole: tuple[str, ...] = ()

    @classmethod
    def of_json(cls, keys: Mapping[str, Any]) -> LoRA:
        """The inverse of ``dataclasses.asdict`` by way of JSON."""
        return cls(keys["rank"], keys["alpha"], keys["dropout"], tuple(keys["targets"]), tuple(keys["whole"]))

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / self.rank

    def adapts(self, name: str) -> bool:
        """Whether this is the name of a linear map that is adapted."""
        return bool(OF_A_LAYER.search(name)) and any(name.endswith(f".{target}") for target in self.targets)

    def trains(self, name: str) -> bool:
        """Whether a parameter is trained; all others stay as they are."""
        return f".{A}." in name or f".{B}." in name or name in self.whole


def maps(table: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The linear maps of a model's layers, by name."""
    found = {name.removesuffix(".weight"): one for name, one in table.items() if one.role == "linear"}
    return {name: one for name, one in found.items() if OF_A_LAYER.search(name)}


def parameters(table: Mapping[str, Parameter], lora: LoRA) -> dict[str, Parameter]:
    """The adapter's own parameters, by name.

    Args:
        table: of the model that is adapted.
    """
    found = {}
    for name, (shape, role) in maps(table).items():
        if lora.adapts(name):
            outputs, inputs = shape
            found[f"{name}.{A}.weight"] = Parameter((lora.rank, inputs), role)
            found[f"{name}.{B}.weight"] = Parameter((outputs, lora.rank), role)
    return found


def new_values(table: Mapping[str, Parameter], lora: LoRA, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Name and first float32 value of the adapter's parameters: A normal, so that A x is about as large as x, B zero
    (section 4.1): the adapted model begins as the one it adapts."""
    for name, (shape, _) in parameters(table, lora).items():
        if f".{A}." in name:
            draws = generator(seed, name).standard_normal(shape, dtype=np.float32)
            yield name, draws / np.float32(math.sqrt(shape[1]))
        else:
            yield name, np.zeros(shape, np.float32)


def merged(weights: Mapping[str, np.ndarray], lora: LoRA) -> Mapping[str, np.ndarray]:
    """The weights of a plain model that computes the same: W0 + (alpha / r) B A, added up in float64, each when it is
    asked for.

    Args:
        weights: of the adapted model, the adapter's among them, in Hugging Face's names and layout.
    """
    plain = [name for name in weights if f".{A}." not in name and f".{B}." not in name]
    return OnDemand({name: partial(_merged, weights, name, lora.scale) for name in plain})


def _merged(weights: Mapping[str, np.ndarray], name: str, scale: float) -> np.ndarray:
    value, path = weights[name], name.removesuffix(".weight")
    if f"{path}.{A}.weight" not in weights:
        return value
    first, second = (weights[f"{path}.{factor}.weight"].astype(np.float64) for factor in (A, B))
    return (value + scale * (second @ first)).astype(value.dtype)
