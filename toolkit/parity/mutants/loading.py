"""Faults in reading a checkpoint. The gate's own weights, which both sides are given, never show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from toolkit.parity.mutants.fault import Modules, Mutant

#: A tensor of the checkpoint as a loader hands it on.
Stored = tuple[str, np.ndarray]


def _read(port: Modules, change: Callable[[str, np.ndarray], Stored]) -> list[tuple]:
    """Read each tensor as ``change`` makes it."""
    read_tensors = port.hub.read_tensors

    def read(folder) -> Iterator[Stored]:
        return (change(name, value) for name, value in read_tensors(folder))

    return [(port.hub, "read_tensors", read)]


def _exchanged(one: str, other: str) -> Callable[[str, np.ndarray], Stored]:
    """Read what is stored under one name under the other."""
    return lambda name, value: (name.replace(one, "\0").replace(other, one).replace("\0", other), value)


def _transposed(ending: str) -> Callable[[str, np.ndarray], Stored]:
    return lambda name, value: (name, value.T if name.endswith(ending) else value)


def _halved(name: str, value: np.ndarray) -> Stored:
    return name, value.astype(np.float16).astype(np.float32)


def faults(family: str, query: str, key: str, layers: str, first: str, embedding: str) -> tuple[Mutant, ...]:
    """Return the faults of a family.

    Args:
        query, key: part of the names of two square matrices.
        layers: prefix of a layer's number; layers 0 and 2 are alike.
        first: the first module of layer 0.
        embedding: the module of the first parameter of all.
    """

    def fault(name: str, what: str, expected: str, change: Callable[[str, np.ndarray], Stored]) -> Mutant:
        return Mutant(f"{family}-loads-{name}", what, expected, lambda p: _read(p, change), loader=True, kind="loading")

    return (
        fault("query-as-key", "query and key exchanged", query, _exchanged(query, key)),
        fault("layers-out-of-order", "two layers exchanged", first, _exchanged(f"{layers}0.", f"{layers}2.")),
        fault("square-transposed", "a square matrix transposed", query, _transposed(f"{query}weight")),
        fault("in-float16", "values rounded to float16", embedding, _halved),
    )
