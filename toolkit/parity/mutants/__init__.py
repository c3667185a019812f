"""Faults that real ports, tokenizers, loaders, new weights and training loops have, each as a change to the running
port. The gate is judged by whether it catches them.

A mutant is applied in the Paddle worker's process, for the time of one step. ``expected`` says where the gate must
locate the fault: it is a part of the name of the finding nearest to the cause.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from models.families import FAMILIES
from toolkit.parity.job.family_part import family_part
from toolkit.parity.mutants import change, generic
from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.loops import BELOW_THE_NOISE, LOOPS, OF_ADAMW

__all__ = [
    "BELOW_THE_NOISE",
    "LOOPS",
    "OF_ADAMW",
    "Mutant",
    "by_name",
    "catalogue",
    "faults_of_heads",
    "faults_of_loops",
    "faults_of_precision",
    "keys_of_head",
]


@functools.cache
def catalogue(model: str) -> tuple[Mutant, ...]:
    """Return the faults of a family that float64 and float32 show."""
    return family_part(model, "mutants").CATALOGUE


def faults_of_heads(model: str) -> dict[str, tuple[Mutant, ...]]:
    """Return head -> its faults, of the heads that a family's catalogue is not tried with."""
    return getattr(family_part(model, "mutants"), "OF_HEADS", {})


def keys_of_head(model: str, head: str) -> Mapping[str, Any]:
    """Return the keys of a configuration that change where its faults are tried with this head."""
    return getattr(family_part(model, "mutants"), "KEYS_OF_HEADS", {}).get(head, {})


@functools.cache
def faults_of_precision(model: str) -> tuple[Mutant, ...]:
    """Return the faults of a family in mixed precision, which no other dtype shows."""
    return family_part(model, "mutants").PRECISION


@functools.cache
def faults_of_loops(model: str) -> tuple[Mutant, ...]:
    """Return the faults of a family's compiled loops, which are below float32's noise in a step."""
    return family_part(model, "mutants").LOOPS


def by_name(name: str) -> Mutant:
    """Return the mutant of a name: of the catalogues, of a head, of class weights, of an optimizer, of an adapter, of a
    compiled loop, a change of one parameter, or a fault of a pair's port. Raises KeyError."""
    if made := change.of_name(name) or generic.of_name(name):
        return made
    from toolkit.parity.mutants import shared  # reads files, which needs a package that a user's port may lack

    catalogues = (
        *map(catalogue, FAMILIES),
        *map(faults_of_precision, FAMILIES),
        *(faults for model in FAMILIES for faults in faults_of_heads(model).values()),
        *shared.CLASS_WEIGHTS.values(),
        shared.LABEL_SMOOTHING,
        *shared.OPTIMIZERS.values(),
        shared.LORA,
        *LOOPS.values(),
        BELOW_THE_NOISE.values(),
        OF_ADAMW,
    )
    return {mutant.name: mutant for several in catalogues for mutant in several}[name]
