"""Low-rank adaptation: the adapted linear maps, the adapter's parameters, and their merging into the weights.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1: a linear map W0 (out, in) is
frozen, and B A is trained, B (out, r) and A (r, in): h = W0 x + (alpha / r) B A x. The layers that compute it are in
:mod:`.adapter`; this module needs no Paddle.
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
OF_A_LAYER = re.compile(r"^.*?\.\d+\.")
#: Names of the two factors in an adapter's checkpoint, below the map that they adapt.
A, B = "lora_A", "lora_B"


@dataclass(frozen=True)
class LoRA:
    """An adapter's settings.

    Attributes:
        rank: r.
        alpha: the update is scaled by alpha / r.
        dropout: dropout rate of the input of A in training.
        targets: name endings of linear maps, such as ``query`` or ``attention.output.dense``.
        whole: names of parameters trained directly: of a head that the checkpoint lacks.
    """

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    whole: tuple[str, ...] = ()

    @classmethod
    def of_json(cls, keys: Mapping[str, Any]) -> LoRA:
        """Invert ``dataclasses.asdict`` after JSON."""
        return cls(keys["rank"], keys["alpha"], keys["dropout"], tuple(keys["targets"]), tuple(keys["whole"]))

    @property
    def scale(self) -> float:
        """Factor of B A, alpha / r."""
        return self.alpha / self.rank

    def adapts(self, name: str) -> bool:
        """Whether the linear map of this name is adapted."""
        return bool(OF_A_LAYER.search(name)) and any(name.endswith(f".{target}") for target in self.targets)

    def trains(self, name: str) -> bool:
        """Whether a parameter is trained; all others stay as they are."""
        return f".{A}." in name or f".{B}." in name or name in self.whole


def maps(table: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The linear maps of a model's layers, by name."""
    found = {name.removesuffix(".weight"): one for name, one in table.items() if one.role == "linear"}
    return {name: one for name, one in found.items() if OF_A_LAYER.search(name)}


def parameters(table: Mapping[str, Parameter], lora: LoRA) -> dict[str, Parameter]:
    """The adapter's own parameters, by name; ``table`` is that of the adapted model."""
    found = {}
    for name, (shape, role) in maps(table).items():
        if lora.adapts(name):
            outputs, inputs = shape
            found[f"{name}.{A}.weight"] = Parameter((lora.rank, inputs), role)
            found[f"{name}.{B}.weight"] = Parameter((outputs, lora.rank), role)
    return found


def new_values(table: Mapping[str, Parameter], lora: LoRA, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and initial float32 value of each adapter parameter: A normal, so that A x is about as large as x, and
    B zero (section 4.1), so that training starts from the original model."""
    for name, (shape, _) in parameters(table, lora).items():
        if f".{A}." in name:
            draws = generator(seed, name).standard_normal(shape, dtype=np.float32)
            yield name, draws / np.float32(math.sqrt(shape[1]))
        else:
            yield name, np.zeros(shape, np.float32)


def merged(weights: Mapping[str, np.ndarray], lora: LoRA) -> Mapping[str, np.ndarray]:
    """Return the weights of the equivalent plain model: W0 + (alpha / r) B A, summed in float64, each made on access.
    ``weights`` are the adapted model's with the adapter's, in Hugging Face's names and layout."""
    plain = [name for name in weights if f".{A}." not in name and f".{B}." not in name]
    return OnDemand({name: partial(_merged, weights, name, lora.scale) for name in plain})


def _merged(weights: Mapping[str, np.ndarray], name: str, scale: float) -> np.ndarray:
    value, path = weights[name], name.removesuffix(".weight")
    if f"{path}.{A}.weight" not in weights:
        return value
    first, second = (weights[f"{path}.{factor}.weight"].astype(np.float64) for factor in (A, B))
    return (value + scale * (second @ first)).astype(value.dtype)
