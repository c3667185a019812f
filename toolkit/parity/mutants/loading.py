"""Faults in the loading of a checkpoint. A step never shows them, since the gate gives both sides the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from toolkit.parity.mutants.fault import Mutant, PortModules

#: Name and values of a tensor of the checkpoint.
NamedTensor = tuple[str, np.ndarray]


def _replace_reader(port: PortModules, change_tensor: Callable[[str, np.ndarray], NamedTensor]) -> list[tuple]:
    """Replace the reader of checkpoints by a reader that applies ``change_tensor`` to each tensor."""
    read_tensors = port.hub.read_tensors

    def read_changed(folder) -> Iterator[NamedTensor]:
        return (change_tensor(name, value) for name, value in read_tensors(folder))

    return [(port.hub, "read_tensors", read_changed)]


def _exchange_names(first: str, second: str) -> Callable[[str, np.ndarray], NamedTensor]:
    """Return a change that exchanges two parts of the tensors' names.

    Args:
        first: part of a name.
        second: other part of a name.
    """
    return lambda name, value: (name.replace(first, "\0").replace(second, first).replace("\0", second), value)


def _transpose_matrix(suffix: str) -> Callable[[str, np.ndarray], NamedTensor]:
    """Return a function that transposes each loaded tensor whose name ends in ``suffix``."""
    return lambda name, value: (name, value.T if name.endswith(suffix) else value)


def _round_to_float16(name: str, value: np.ndarray) -> NamedTensor:
    """Return the name and the value of a loaded tensor after it is rounded to float16."""
    return name, value.astype(np.float16).astype(np.float32)


def loading_faults(
    family: str, query: str, key: str, layer_prefix: str, first_module: str, embedding: str
) -> tuple[Mutant, ...]:
    """Return the faults in loading a checkpoint of a family.

    Args:
        family: name of the model family.
        query: part of the name of a square matrix.
        key: part of the name of another square matrix.
        layer_prefix: the part of a name before the layer's number; layers 0 and 2 have the same shapes.
        first_module: part of the name of the first module of layer 0.
        embedding: module of the model's first parameter.
    """

    def fault(
        name: str, description: str, culprit: str, change_tensor: Callable[[str, np.ndarray], NamedTensor]
    ) -> Mutant:
        return Mutant(
            f"{family}-loads-{name}",
            description,
            culprit,
            lambda port: _replace_reader(port, change_tensor),
            loader=True,
            kind="loading",
        )

    return (
        fault("query-as-key", "query and key exchanged", query, _exchange_names(query, key)),
        fault(
            "layers-out-of-order",
            "two layers exchanged",
            first_module,
            _exchange_names(f"{layer_prefix}0.", f"{layer_prefix}2."),
        ),
        fault("square-transposed", "a square matrix transposed", query, _transpose_matrix(f"{query}weight")),
        fault("in-float16", "values rounded to float16", embedding, _round_to_float16),
    )
